// Authenticated encryption of a chunk: the bytes of libsodium's crypto_secretbox_detached (XSalsa20
// and Poly1305), computed by libsodium and libcrypto together, which is faster.
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

// Returns the nonce of chunk `count`, where `first` is that of chunk 0. Nonces are little-endian
// numbers that count up.
Nonce nonce_after(const Nonce& first, std::uint64_t count) noexcept;

// Writes the ciphertext of `plain` to `out`, of the same size, which may be the same memory, and
// returns its MAC. `key` has kKeySize bytes. Never use a nonce for two chunks.
Mac encrypt_chunk(ConstBytes key, const Nonce& nonce, ConstBytes plain, Bytes out);

// Decrypts in place if the MAC is right. Otherwise leaves `bytes` unchanged and returns false.
[[nodiscard]] bool decrypt_chunk(ConstBytes key, const Nonce& nonce, ConstBytes mac, Bytes bytes);

}  // namespace tensorizer
