// Reads what a `.tensors` file says about itself.
#pragma once

#include "engine/file_keys.h"
#include "format/index.h"
#include "io/source.h"

namespace tensorizer {

// The place of the source, for checks and messages; it refers to the source's label.
FilePlace place_of(const Source& source);

// Reads and checks the header and the index, and, where the source can be read in any order, the
// dtypes that stand in tensor headers only. With keys, the file must be encrypted, and what it says
// of its own metadata must be right. Throws Error(Crypto) where that is not so.
Index read_index(Source& source, FileKeys* keys, Cancel& cancel);

// Throws Error(Crypto) when a tensor's header is not the one that the index of an encrypted file
// has the digest of. `bytes` are as they stand in the file.
void check_header_digest(const Index& index, std::size_t entry, ConstBytes bytes,
                         const FilePlace& place);

}  // namespace tensorizer
