// Digests of what a tensor holds: of its elements in row-major order, as they are stored in a file.
//
// On a CPU they are computed by as many threads as torch uses for an operator. What lies on another
// device comes to the host piece by piece, unless a library registers kernels for that device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <cstdint>

namespace tensorizer::ops {

c10::SymInt crc32(const at::Tensor& data);

// Returns 32 bytes, on the device of `data`.
at::Tensor sha256(const at::Tensor& data);

// Returns the SHA-256 of each chunk of `chunk` bytes, one a row, on the device of `data`. The last
// chunk may be shorter.
at::Tensor sha256_chunks(const at::Tensor& data, std::int64_t chunk);

}  // namespace tensorizer::ops
