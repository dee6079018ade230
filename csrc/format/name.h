// Stored tensor names.
//
// A name is a plain UTF-8 key or, inside nested structures, the byte 0x1E and a JSON array of
// strings and non-negative integers (0x1E["layers",0,"w"]).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tensorizer {

// One step into a nested structure: a key of a mapping or an index of a list.
using NameStep = std::variant<std::string, std::uint64_t>;
using NamePath = std::vector<NameStep>;

inline constexpr char kNestedMark = '\x1e';

inline bool is_nested(std::string_view name) noexcept {
  return !name.empty() && name.front() == kNestedMark;
}

// The steps of a stored name; one step for a plain name. Throws Error(InvalidFormat) with the
// reason ("is not UTF-8", ...) for what is no name.
NamePath parse_name(std::string_view name);

// Throws like parse_name(), without making the path of a plain name.
void check_name(std::string_view name);

// Two names that cannot stand in one file, and why ("is there twice", ...).
struct NameConflict {
  std::size_t first;
  std::size_t second;
  std::string_view reason;
};

// Throws nothing about single names: the caller has checked those. Returns the positions of two
// names that are equal, of which one is inside the other, or that mix keys and indices in one
// layer; both positions are the same when there are none.
NameConflict find_conflict(std::span<const std::string_view> names);

}  // namespace tensorizer
