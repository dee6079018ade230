// Tensors that are the same memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <vector>

#include "base/cancel.h"

namespace tensorizer {

// Returns, for each tensor, the number of the first tensor that is the same memory (MemoryKey).
std::vector<std::size_t> find_ties(std::span<const at::Tensor> tensors);

// Returns whether both have the same elements, bit by bit. They must have the same shape, dtype and
// device. Tensors without memory have.
bool has_same_bytes(const at::Tensor& tensor, const at::Tensor& other);

// Copies all elements, in pieces, so that a cancel does not wait for a large tensor.
void copy_elements(const at::Tensor& to, const at::Tensor& from, Cancel& cancel);

}  // namespace tensorizer
