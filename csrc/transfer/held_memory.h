// Keeps the memory of tensors where it is while a job reads or fills it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <span>
#include <vector>

namespace tensorizer {

// While this lives, the storages of the tensors live as well, also where a tensor gets another one
// (`p.data = …`), and torch refuses to resize them: whoever tries meanwhile, in another thread, has
// an error. Several jobs may hold the same storage. What nothing can refuse is memory that goes in
// other ways: share_memory_(), or under numpy.
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
