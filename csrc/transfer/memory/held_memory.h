// Keeps the memory of tensors in place while a job reads or fills it.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace tensorizer {

// While this lives, the storages of the tensors live too, even if a tensor gets another one
// (`p.data = …`), and torch refuses to resize them: another thread that tries gets an error.
// Several jobs may hold the same storage. This cannot prevent share_memory_() from moving the
// memory, or numpy from freeing an array under a tensor.
//
// A job uses tensors() in place of the tensors themselves, which may become other ones at any time,
// and checks only these: before, nothing is known of them.
class HeldMemory {
 public:
  // Reads the tensors while no other thread of Python runs (run_alone()). So a resize of a storage
  // has ended by then, and what Python assigns to `data` is read in whole.
  explicit HeldMemory(std::span<const at::Tensor> tensors);
  ~HeldMemory();
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;

  // For each tensor another one over its memory, without its history for autograd; the tensor
  // itself if it is not plain (is_not_plain()), which is then not held.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

  // Lets go of the memory, and of tensors().
  void release() noexcept;

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<bool> held_;
};

}  // namespace tensorizer
