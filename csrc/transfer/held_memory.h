// Keeps the memory of tensors in place while a job reads or fills it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <span>
#include <vector>

namespace tensorizer {

// While this lives, the storages of the tensors live too, even if a tensor gets another one
// (`p.data = …`), and torch refuses to resize them: another thread that tries gets an error.
// Several jobs may hold the same storage. This cannot prevent share_memory_() from moving the
// memory, or numpy from freeing an array under a tensor.
class HeldMemory {
 public:
  explicit HeldMemory(std::span<const at::Tensor> tensors);
  ~HeldMemory();
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;

 private:
  std::vector<c10::Storage> storages_;
};

}  // namespace tensorizer
