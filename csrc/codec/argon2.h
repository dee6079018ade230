// Keys from passphrases: Argon2id, as libsodium does it.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "base/bytes.h"
#include "base/cancel.h"
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

// The making of a key of kKeySize bytes, which takes the memory that the cost names, and time in
// proportion. It has a thread of its own, because nothing can interrupt it: who stops waiting
// leaves it behind, and its memory is free again when it is done. A child of fork has no such
// thread, and must not touch what its parent began.
class Derivation {
 public:
  // Begins with the first wait(). Throws Error(Crypto) where the cost is impossible.
  Derivation(ConstBytes passphrase, const KeyDerivation& derivation);

  bool is_foreign() const noexcept { return process_ != getpid(); }

  // The key, when it is there; from any number of threads. While more than a few are at work that
  // were left behind, no other begins. Throws Error(OutOfMemory) where there is not that much
  // memory.
  SharedSecret wait(Cancel& cancel);

 private:
  struct Work;

  void begin(std::unique_lock<std::mutex>& lock);

  const pid_t process_ = getpid();
  const std::shared_ptr<Work> work_;
};

// One that nobody else waits for.
SharedSecret derive_key(ConstBytes passphrase, const KeyDerivation& derivation, Cancel& cancel);

}  // namespace tensorizer
