// The memory of tensors, most of it on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "base/bytes.h"
#include "io/mapping.h"

namespace tensorizer {

// Why the elements of a strided tensor cannot be read and written in its own memory; empty where
// they can.
std::string lacks_memory(const at::Tensor& tensor);

// A contiguous tensor that owns its memory, which is still to be filled; the caller knows that its
// size is a number of bytes. A large one starts on a 2 MiB boundary, and its whole 2 MiB blocks are
// advised to be huge pages: page faults, not the copy, are what filling it costs. No memory is
// taken beyond its size.
at::Tensor new_tensor(at::IntArrayRef shape, c10::ScalarType type);

// A tensor of zeros that takes memory only where it is written to, so that a shape from a file,
// which costs that file nothing, costs nothing here.
at::Tensor new_zeros(at::IntArrayRef shape, c10::ScalarType type);

// A tensor over bytes of a mapping. Its storage covers just these, keeps the mapping alive, and
// gives back the memory of its whole pages when it goes.
at::Tensor mapped_tensor(std::shared_ptr<Mapping> mapping, Bytes part, at::IntArrayRef shape,
                         c10::ScalarType type);

// The bytes of a contiguous tensor on the CPU.
Bytes tensor_bytes(const at::Tensor& tensor);

}  // namespace tensorizer
