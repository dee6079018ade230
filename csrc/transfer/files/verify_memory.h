// Compares tensors in memory with the digests that a file has of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "engine/open/open_file.h"
#include "engine/options.h"
#include "tensorizer_ops/options.h"

namespace tensorizer {

// Returns whether the digests in the header of a tensor tell it from others. If the file must be
// signed, a CRC32 does not: tensors that differ may have the same. If it must have a digest, none
// does: that digest does not cover them.
bool suffice(const Digests& digests, const LoadOptions& options);

// Returns whether a tensor that lies anywhere has the same elements, bit by bit, as one on the CPU.
bool has_same_bytes(const at::Tensor& tensor, const at::Tensor& expected, Cancel& cancel);

// Loads the tensor of this number to the CPU.
using LoadTensor = std::function<at::Tensor(std::uint32_t number)>;

// Compares tensors with those of these names in the file. Digests of chunks and CRC32s are computed
// by the ops of `tensorizer`, on the device of each tensor; SHA-256 of whole tensors on the host.
// A tensor without digests that suffice() is compared with what `load` returns for it.
// Throws HashMismatch, which names every tensor that differs; InvalidFormat if the file has no
// digest of a tensor; InvalidArgument if a tensor has another type or shape than in the file.
void verify_memory(OpenFile& file, const std::vector<std::string>& names,
                   const std::vector<at::Tensor>& tensors, Verify verify, const LoadTensor& load,
                   Cancel& cancel);

}  // namespace tensorizer
