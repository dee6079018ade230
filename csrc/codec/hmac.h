// Keyed digests, and digests as text.
#pragma once

#include <string>

#include "base/bytes.h"
#include "codec/sha256.h"

namespace tensorizer {

Sha256Digest sha256(ConstBytes bytes) noexcept;

// HMAC-SHA256.
Sha256Digest hmac(ConstBytes key, ConstBytes message) noexcept;

std::string to_hex(ConstBytes bytes);

}  // namespace tensorizer
