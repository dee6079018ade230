// Access to the elements of a tensor in row-major order, whatever its layout in memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace tensorizer {

// The elements of a strided tensor on any device. Positions and sizes count bytes of the stored
// form: contiguous, of dtype `stored`, with conjugate and negative bits resolved. Keeps the tensor
// alive.
class Elements {
 public:
  Elements(const at::Tensor& tensor, c10::ScalarType stored);

  c10::Device device() const { return tensor_.device(); }
  // Returns `size` of the tensor's own bytes from `position` on; undefined if the tensor is not in
  // its stored form.
  at::Tensor bytes(std::uint64_t position, std::int64_t size) const;

  // Returns whether the tensor's own bytes are in the stored form.
  bool is_stored() const { return bytes_.defined(); }

  // Copy the elements from `position` on to or from `bytes`, which holds whole elements and is
  // aligned as they need (engine/move/tensor_port.h).
  void get(std::uint64_t position, const at::Tensor& bytes) const;
  void put(std::uint64_t position, const at::Tensor& bytes) const;

 private:
  template <typename Copy>
  void for_each_pair(std::uint64_t position, const at::Tensor& bytes, const Copy& copy) const;

  at::Tensor tensor_;
  at::Tensor bytes_;
  c10::ScalarType stored_;
};

// Sets every element to zero, also for dtypes that torch cannot fill.
void make_zero(const at::Tensor& tensor);

}  // namespace tensorizer
