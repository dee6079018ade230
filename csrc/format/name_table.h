// Finds tensors by name.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/cancel.h"

namespace tensorizer {

// A hash table of names. It takes 11 to 22 bytes for each and refers to the list, which must
// outlive it. Const methods are thread-safe.
class NameTable {
 public:
  NameTable(std::span<const std::string_view> names, Cancel& cancel);

  // Returns the number of a name in the list; of the first if several are equal.
  std::optional<std::uint32_t> find(std::string_view name) const;
  // Returns the numbers of the first name that appears a second time, and of that second one.
  std::optional<std::pair<std::uint32_t, std::uint32_t>> twice() const noexcept { return twice_; }

 private:
  struct Slot {
    std::uint32_t number;
    // The half of the name's hash that its place does not tell. Names are somewhere else in memory
    // and only looked at if this is equal.
    std::uint32_t tag;
  };

  // Returns the number of the slot that has the name, or that it would be put into.
  std::size_t slot_of(std::string_view name, std::uint64_t hash) const;

  std::span<const std::string_view> names_;
  std::vector<Slot> slots_;  // a power of two of them
  std::optional<std::pair<std::uint32_t, std::uint32_t>> twice_;
};

// Throws Error(InvalidArgument) if two tensors of a save have the same name.
void check_saved_names(std::span<const std::string_view> names, Cancel& cancel);

// Returns the first key that appears a second time among pairs of keys and values; null if none
// does. The key belongs to the pairs.
template <typename Pairs>
std::optional<std::string_view> repeated_key(const Pairs& pairs, Cancel& cancel) {
  std::vector<std::string_view> keys;
  keys.reserve(pairs.size());
  for (const auto& [key, value] : pairs) keys.push_back(key);
  const auto twice = NameTable(keys, cancel).twice();
  return twice ? std::optional(keys[twice->second]) : std::nullopt;
}

}  // namespace tensorizer
