// References to secrets and keys ("env:NAME", "file:PATH", "named:NAME"), and the reading of what
// they refer to.
#pragma once

#include <chrono>
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
  std::string_view name;  // of the variable, the file or the secret; points into the parsed text
};

// Parses "env:NAME", "file:PATH" and "named:NAME". Returns null for anything else.
std::optional<SecretReference> parse_secret_reference(std::string_view text) noexcept;

// Returns the value of an environment variable. `what` is its expected content ("a key"), for
// messages. Throws Error(InvalidArgument) if the variable is not set.
std::string_view read_secret_variable(const std::string& name, const std::string& what);

// Tests lower it.
extern std::chrono::milliseconds secret_pipe_patience;

// Returns the bytes of a file, but at most `most` + 1 of them: the file may be a device that never
// ends. Throws Error(NotFound) and the other errors of files, and SystemError (ETIMEDOUT) for a
// pipe whose writers have not finished within `secret_pipe_patience`.
SecretBytes read_secret_file(const std::string& path, std::size_t most, const std::string& what);

// The values that a process has registered under names. Thread-safe.
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
