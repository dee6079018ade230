// How a caller names a secret or a key instead of giving it, and where it is found then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "codec/secret_bytes.h"

namespace tensorizer {

enum class SecretPlace : std::uint8_t { Variable, File, Named };

struct SecretReference {
  SecretPlace place;
  std::string_view name;  // of the variable, the file or the secret; a part of the parsed text
};

// Parses "env:NAME", "file:PATH" and "named:NAME". Returns null for anything else.
std::optional<SecretReference> parse_secret_reference(std::string_view text) noexcept;

// Returns the value of a variable of the environment. `what` it shall hold ("a key") is for
// messages. Throws Error(InvalidArgument) where there is no such variable.
std::string_view read_secret_variable(const std::string& name, const std::string& what);

// Returns the bytes of a file, or one more than `most` of them: it may be a device that never ends.
// Throws Error(NotFound) and the like, also where the file is a pipe into which nothing is written
// for 10 seconds.
SecretBytes read_secret_file(const std::string& path, std::size_t most, const std::string& what);

// What a process keeps under names. Thread-safe.
template <typename Value>
class NameTable {
 public:
  void set(const std::string& name, Value value) {
    const std::lock_guard lock(mutex_);
    values_[name] = std::move(value);
  }
  void forget(const std::string& name) {
    const std::lock_guard lock(mutex_);
    values_.erase(name);
  }
  std::optional<Value> find(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(name);
    if (found == values_.end()) return std::nullopt;
    return found->second;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, Value> values_;
};

}  // namespace tensorizer
