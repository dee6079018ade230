// Reads what a `.tensors` file says about itself.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/file_keys.h"
#include "format/index.h"
#include "format/tensor_header.h"
#include "io/source.h"

namespace tensorizer {

// The place of the source, for checks and messages; it refers to the source's label.
FileLocation place_of(const Source& source);

// Reads and checks the header and the index, and, where the source can be read in any order, the
// dtypes that stand in tensor headers only. With keys, the file must be encrypted, and what it says
// of its own metadata must be right. Throws Error(Crypto) where that is not so. What ends the file
// is checked where that costs no request.
Index read_index(Source& source, FileKeys* keys, Cancel& cancel);

// Makes `bytes` the `size` bytes that stand at `offset`. Where only a server, or the file itself,
// says that they are there, memory is taken as they arrive.
void read_arriving(Source& source, std::uint64_t offset, std::uint64_t size,
                   std::vector<std::byte>& bytes, Cancel& cancel);

// As parse_tensor_header(), of bytes as they stand in the file; throws Error(Crypto) when they are
// not those that the index of an encrypted file has the digest of.
TensorHeader parse_authentic_header(Bytes bytes, const Index& index, std::size_t entry,
                                    const FileLocation& location);

}  // namespace tensorizer
