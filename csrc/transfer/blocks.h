// The elements of a tensor, in row-major order, however it lies in memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace tensorizer {

// Those of any strided tensor, on any device; as they are stored, they are contiguous and of type
// `stored`, conjugate and negative bits resolved.
class Elements {
 public:
  Elements(const at::Tensor& tensor, c10::ScalarType stored);

  c10::Device device() const { return tensor_.device(); }
  // The tensor's own bytes from `position` on, where they lie as they are stored; or nothing.
  at::Tensor bytes(std::uint64_t position, std::int64_t size) const;

  // All of them; undefined if they do not lie as they are stored.
  const at::Tensor& all_bytes() const { return bytes_; }

  // Copies the elements from `position` on to, or from, bytes that hold whole elements, and lie as
  // these must (engine/tensor_port.h).
  void get(std::uint64_t position, const at::Tensor& bytes) const;
  void put(std::uint64_t position, const at::Tensor& bytes) const;

 private:
  template <typename Copy>
  void for_each_pair(std::uint64_t position, const at::Tensor& bytes, const Copy& copy) const;

  at::Tensor tensor_;
  at::Tensor bytes_;
  c10::ScalarType stored_;
};

// Makes every element zero, also of a type that torch cannot fill.
void make_zero(const at::Tensor& tensor);

}  // namespace tensorizer
