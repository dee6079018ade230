// The records behind the last index entry.
//
// Old readers count entries and never look at what follows in the index, so that is where things
// about the file as a whole go: a magic, then records (kind u16, length u32, body) up to a kind 0
// or the end of the index. A reader skips the kinds that it does not know. Nothing but zeros stands
// behind the records, or where there are none: anything else is an entry that was not counted.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/bytes.h"

namespace tensorizer {

inline constexpr std::string_view kFrameMagic = "|TZX|";

struct Record {
  std::uint16_t kind;
  ConstBytes body;
};

// In a time that hardly counts beside that of reading them.
bool all_zero(ConstBytes bytes) noexcept;

// Walks the records of `bytes`, which is what follows the last index entry.
class FrameCursor {
 public:
  explicit FrameCursor(ConstBytes bytes) noexcept;

  // The next record, or nothing at the end.
  std::optional<Record> next() noexcept;

  // False once a record claimed more bytes than there are.
  bool ok() const noexcept { return cursor_.ok(); }
  // Where the walk stands, counted from the start of `bytes`.
  std::size_t position() const noexcept { return cursor_.position(); }

 private:
  Cursor cursor_;
  bool present_;
};

}  // namespace tensorizer
