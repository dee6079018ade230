// The records behind the last index entry.
//
// Old readers count entries and ignore what follows them in the index, so metadata of the whole
// file is stored there: a magic, then records (kind u16, length u32, body) up to a kind 0 or the
// end of the index. A reader skips the kinds that it does not know. The rest of the index must be
// zeros, also if there are no records: anything else could be an entry that was not counted.
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

// Returns whether all bytes are zero. Takes almost no time beside reading them.
bool all_zero(ConstBytes bytes) noexcept;

// Iterates over the records in `bytes`, which are those behind the last index entry.
class FrameCursor {
 public:
  explicit FrameCursor(ConstBytes bytes) noexcept;

  // Returns the next record; nullopt at the end. The body points into `bytes`.
  std::optional<Record> next() noexcept;

  // Returns false if a record claimed more bytes than there are.
  bool ok() const noexcept { return cursor_.ok(); }
  // Returns how many of `bytes` have been parsed.
  std::size_t position() const noexcept { return cursor_.position(); }

 private:
  Cursor cursor_;
  bool present_;
};

}  // namespace tensorizer
