// Keyed digests, and digests as text.
#pragma once

#include <string>
#include <string_view>

#include "base/bytes.h"
#include "codec/sha256.h"

namespace tensorizer {

Sha256Digest sha256(ConstBytes bytes) noexcept;

// HMAC-SHA256.
Sha256Digest hmac(ConstBytes key, ConstBytes message) noexcept;

std::string to_hex(ConstBytes bytes);
// False where `text` is not two hexadecimal digits for each byte of `out`.
bool from_hex(std::string_view text, Bytes out) noexcept;

}  // namespace tensorizer
