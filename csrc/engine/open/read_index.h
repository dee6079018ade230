// Reads the index of a `.tensors` file.
#pragma once

#include <vector>

#include "engine/digest/file_keys.h"
#include "format/tensors/index.h"
#include "io/source.h"

namespace tensorizer {

// Reads and checks the file header and the index and, if the source can be read in any order, the
// dtypes that only tensor headers have. `bytes` are those with which the file begins, as far as
// they have been read. Throws Crypto if what authenticates the metadata is wrong. The end of the
// file is checked if that costs no request.
Index read_index(Source& source, std::vector<std::byte> bytes, FileKeys* keys, Cancel& cancel);

}  // namespace tensorizer
