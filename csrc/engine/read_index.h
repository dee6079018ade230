// Reads the index of a `.tensors` file.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/file_keys.h"
#include "format/tensors/index.h"
#include "io/source.h"

namespace tensorizer {

// Returns the location of the source, for checks and messages. It refers to the source's label.
FileLocation location_of(const Source& source);

// Reads and checks the file header and the index and, if the source can be read in any order, the
// dtypes that only tensor headers have. Throws Crypto if keys are given and the file is not
// encrypted, or what authenticates its metadata is wrong. The end of the file is checked if that
// costs no request.
Index read_index(Source& source, FileKeys* keys, Cancel& cancel);

// Replaces `bytes` by the `size` bytes at `offset`. Allocates memory only as bytes arrive, unless
// the source is a local file: a size that a server or the file itself claims may be false.
void read_arriving(Source& source, std::uint64_t offset, std::uint64_t size,
                   std::vector<std::byte>& bytes, Cancel& cancel);

}  // namespace tensorizer
