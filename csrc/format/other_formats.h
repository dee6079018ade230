// Names files of other formats, which are often taken for a file of tensors, for messages.
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

}  // namespace tensorizer
