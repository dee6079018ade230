// Outputs of a load that share some of their memory, as a tensor and a view of it do.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "base/cancel.h"

namespace tensorizer {

// Threads fill outputs at once, and check and decrypt data in them. So outputs that overlap, or
// whose own elements may, are filled one after the other, from tensors that are loaded in their
// place.
class OverlappingOutputs {
 public:
  // Replaces such outputs. Those that are the same tensor do not count: none is part of another.
  explicit OverlappingOutputs(std::vector<at::Tensor>& outputs);

  // Copies the outputs to what replaces them, for tensors that are changed and not loaded.
  void copy_outputs(Cancel& cancel) const;

  // Fills the outputs after the load. Returns the place of one that does not have its data, because
  // another one has different data for the same memory; `none` if there is no such output.
  std::size_t fill(Cancel& cancel) const;

  // Sets the outputs to zero. Ignores failures: the caller already has an error to report.
  void blank() const noexcept;

  static constexpr std::size_t none = static_cast<std::size_t>(-1);

 private:
  struct Output {
    std::size_t place;
    at::Tensor memory;
    at::Tensor loaded;
  };
  std::vector<Output> outputs_;
};

}  // namespace tensorizer
