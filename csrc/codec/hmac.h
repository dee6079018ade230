// Keyed digests, and digests as text.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "codec/sha256.h"

namespace tensorizer {

Sha256Digest sha256(ConstBytes bytes) noexcept;

// HMAC-SHA256.
Sha256Digest hmac(ConstBytes key, ConstBytes message) noexcept;

// Returns HMAC-SHA1, for protocols that still need it. Throws Error(Unavailable) if libcrypto has
// no SHA-1.
std::array<std::byte, 20> hmac_sha1(ConstBytes key, ConstBytes message);

std::string to_hex(ConstBytes bytes);
std::string to_base64(ConstBytes bytes);
// Returns null for anything but base64 with its padding.
std::optional<std::vector<std::byte>> from_base64(std::string_view text);
// Returns false unless `text` is two hexadecimal digits for each byte of `out`.
bool from_hex(std::string_view text, Bytes out) noexcept;

}  // namespace tensorizer
