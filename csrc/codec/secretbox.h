// Authenticated encryption of a chunk: the bytes of libsodium's crypto_secretbox_detached
// (XSalsa20 and Poly1305), made faster from two libraries.
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.h"

namespace tensorizer {

inline constexpr std::size_t kKeySize = 32;
inline constexpr std::size_t kNonceSize = 24;
inline constexpr std::size_t kMacSize = 16;

using Nonce = std::array<std::byte, kNonceSize>;
using Mac = std::array<std::byte, kMacSize>;

Nonce random_nonce() noexcept;

// The nonce of chunk `count`, when `first` is that of chunk 0: a little-endian number that is
// counted up.
Nonce nonce_after(const Nonce& first, std::uint64_t count) noexcept;

// Writes the ciphertext of `plain` to `out`, of the same size, which may be the same memory. `key`
// has kKeySize bytes. A nonce is for one chunk ever.
Mac encrypt_chunk(ConstBytes key, const Nonce& nonce, ConstBytes plain, Bytes out);

// Decrypts in place when the MAC is right; else it leaves `bytes` alone and returns false.
[[nodiscard]] bool decrypt_chunk(ConstBytes key, const Nonce& nonce, ConstBytes mac, Bytes bytes);

}  // namespace tensorizer
