// Stored tensor names.
//
// A name is a plain UTF-8 key or, inside nested structures, the byte 0x1E and a JSON array of
// strings and non-negative integers (0x1E["layers",0,"w"]).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/cancel.h"

namespace tensorizer {

inline constexpr char kNestedMark = '\x1e';

inline bool is_nested(std::string_view name) noexcept {
  return !name.empty() && name.front() == kNestedMark;
}

// The largest number of steps in a nested name. Names of real structures are far from it.
inline constexpr std::size_t kMostSteps = 1000;

// The byte that begins a step in the form of a path: a key of a mapping, or an index of a list.
inline constexpr char kKeyStep = '\0';
inline constexpr char kIndexStep = '\1';
// Escapes a byte of a key that equals one of these three: comes before that byte plus '0'.
inline constexpr char kStepEscape = '\2';

// Appends the path of a stored name in a form for sorting, which is about as long as the name. In
// the byte order of these forms, a layer is followed directly by everything inside it, keys before
// indices. Equal paths have equal forms. A plain name is a path of one key. Throws
// Error(InvalidFormat) with the reason ("is not UTF-8", ...) if `name` is malformed.
void append_path(std::string& out, std::string_view name);

// Throws Error(InvalidFormat) with the reason if `name` is malformed.
void check_name(std::string_view name);

// The positions of two names that cannot be in one file, and why ("has the same name as", ...).
struct NameConflict {
  std::size_t first;
  std::size_t second;
  std::string_view reason;
};

// Returns two names that are equal, of which one is inside the other, or that mix keys and indices
// in one layer; both positions are the same if there is no conflict. The caller must have checked
// each name with check_name().
NameConflict find_conflict(std::span<const std::string_view> names, Cancel& cancel);

}  // namespace tensorizer
