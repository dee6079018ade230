// Reads what a `.tensors` file says about itself.
#pragma once

#include "format/index.h"
#include "io/source.h"

namespace tensorizer {

// The place of the source, for checks and messages; it refers to the source's label.
FilePlace place_of(const Source& source);

// Reads and checks the header and the index, and, where the source can be read in any order, the
// dtypes that stand in tensor headers only.
Index read_index(Source& source, Cancel& cancel);

}  // namespace tensorizer
