// Compares tensors in memory with the digests that a file has of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "base/cancel.h"
#include "engine/open/open_file.h"
#include "tensorizer_ops/options.h"

namespace tensorizer {

// Compares tensors with those of these names in the file. Digests of chunks and CRC32s are computed
// by the ops of `tensorizer`, on the device of each tensor; SHA-256 of whole tensors on the host.
// Throws HashMismatch, which names every tensor that differs; InvalidFormat if the file has no
// digest of a tensor; InvalidArgument if a tensor has another type or shape than in the file.
void verify_memory(OpenFile& file, const std::vector<std::string>& names,
                   const std::vector<at::Tensor>& tensors, Verify verify, Cancel& cancel);

}  // namespace tensorizer
