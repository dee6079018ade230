// Derives keys from passphrases with libsodium's Argon2id.
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

// The cost of a derivation: the number of passes over so many bytes of memory.
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

// Returns the cost named "min", "interactive", "moderate" or "sensitive"; null for another name.
std::optional<Argon2Cost> named_cost(std::string_view name) noexcept;

// Returns whether the cost is within libsodium's limits.
bool is_possible(const Argon2Cost& cost) noexcept;

// Derives a key of kKeySize bytes, which takes the memory that the cost names and time in
// proportion. Runs on a thread of its own, because libsodium's function cannot be interrupted: a
// caller that stops waiting abandons the thread, which frees its memory when it is done. A child of
// fork() does not have that thread, and must not use a Derivation that its parent started.
class Derivation {
 public:
  // Starts with the first wait(). Throws Error(Crypto) if the cost is outside libsodium's limits.
  Derivation(ConstBytes passphrase, const KeyDerivation& derivation);

  // Returns whether this is a child of the process that created the object.
  bool is_foreign() const noexcept { return process_ != getpid(); }

  // Blocks until the key is derived, and returns it. Thread-safe. Does not start while two
  // abandoned derivations are still running. Throws Error(OutOfMemory), after which a later wait()
  // tries again, and what `cancel` throws.
  SharedSecret wait(Cancel& cancel);

 private:
  struct Work;

  void begin(std::unique_lock<std::mutex>& lock);

  const pid_t process_ = getpid();
  const std::shared_ptr<Work> work_;
};

// Derives a key that is not shared with other threads.
SharedSecret derive_key(ConstBytes passphrase, const KeyDerivation& derivation, Cancel& cancel);

}  // namespace tensorizer
