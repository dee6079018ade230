// Keys from passphrases: Argon2id, as libsodium does it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/bytes.h"
#include "codec/secret_bytes.h"

namespace tensorizer {

inline constexpr std::size_t kSaltSize = 16;

// How hard a derivation is: passes over so many bytes of memory.
struct Argon2Cost {
  std::uint64_t passes;
  std::uint64_t memory;

  bool operator==(const Argon2Cost&) const = default;
};

struct KeyDerivation {
  Argon2Cost cost;
  std::array<std::byte, kSaltSize> salt;

  bool operator==(const KeyDerivation&) const = default;
};

// "min", "interactive", "moderate" or "sensitive".
std::optional<Argon2Cost> named_cost(std::string_view name) noexcept;

// Whether libsodium takes it at all.
bool is_possible(const Argon2Cost& cost) noexcept;

// A key of kKeySize bytes. It takes the memory that the cost names, and time in proportion. Throws
// Error(Crypto) where the cost is impossible or there is not that much memory.
SharedSecret derive_key(ConstBytes passphrase, const KeyDerivation& derivation);

}  // namespace tensorizer
