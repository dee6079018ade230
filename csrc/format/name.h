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

// How deep a nested name may be. What was nested when it was saved is far from that.
inline constexpr std::size_t kMostSteps = 1000;

// What a step of a path begins with in its form: the key of a mapping, or the index of a list.
inline constexpr char kKeyStep = '\0';
inline constexpr char kIndexStep = '\1';
// Stands in front of a byte, raised by '0', that would be one of these three.
inline constexpr char kStepEscape = '\2';

// Appends the path that a stored name is, in a form that is about as long as the name and sorts, as
// bytes: right behind the form of a layer stand those of all that it holds, keys before
// indices, and equal paths have equal forms. A plain name is a path of one key. Throws
// Error(InvalidFormat) with the reason ("is not UTF-8", ...) for what is no name.
void append_path(std::string& out, std::string_view name);

// Throws like append_path().
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
NameConflict find_conflict(std::span<const std::string_view> names, Cancel& cancel);

}  // namespace tensorizer
