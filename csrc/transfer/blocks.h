// Runs of elements of a tensor that does not lie in memory as it is stored.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/load.h"
#include "engine/save.h"

namespace tensorizer {

// Gives the elements of any strided tensor, on any device, as they are stored: contiguous,
// conjugate and negative bits resolved.
class TensorInput final : public StagedInput {
 public:
  explicit TensorInput(at::Tensor tensor);
  void get(std::uint64_t position, Bytes out) override;

 private:
  at::Tensor tensor_;
};

// Copies stored elements of type `stored` into any strided tensor, on any device, of this or
// another type.
class TensorOutput final : public StagedOutput {
 public:
  TensorOutput(at::Tensor tensor, c10::ScalarType stored);
  void put(std::uint64_t position, ConstBytes bytes) override;

 private:
  at::Tensor tensor_;
  c10::ScalarType stored_;
};

}  // namespace tensorizer
