// Names files of other formats, which are often taken for a file of tensors, for messages, and
// knows the endings of their names.
#pragma once

#include <string_view>

#include "base/bytes.h"

namespace tensorizer {

struct OtherFormat {
  std::string_view name;    // "a gzip file"; empty if the format is unknown
  std::string_view advice;  // what to do with such a file
};

// Returns the format of a file that begins with these bytes.
OtherFormat other_format(ConstBytes first) noexcept;

// Returns whether names of files of other formats end so, as ".pt". The ending is in lower case.
bool is_ending_of_other_format(std::string_view ending) noexcept;

}  // namespace tensorizer
