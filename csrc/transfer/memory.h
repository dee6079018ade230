// Allocates the memory of tensors, most of it on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <c10/util/Exception.h>

#include <memory>
#include <new>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "io/mapping.h"

namespace tensorizer {

// Returns whether torch's error means that memory ran out.
bool says_out_of_memory(const c10::Error& error);
// Throws Error(OutOfMemory). `what` is like "memory on cuda:0".
[[noreturn]] void throw_out_of_memory(std::uint64_t size, std::string_view what,
                                      const std::string& reason = {});

// Runs `take`, which allocates `size` bytes. Throws Error(OutOfMemory) if it cannot.
template <typename Take>
auto taking_memory(std::uint64_t size, std::string_view what, const Take& take) {
  try {
    return take();
  } catch (const std::bad_alloc&) {
    throw_out_of_memory(size, what);
  } catch (const c10::Error& error) {
    if (!says_out_of_memory(error)) throw;
    throw_out_of_memory(size, what, error.what_without_backtrace());
  }
}

// Returns why the elements of a strided tensor cannot be read and written in its own memory, or an
// empty string if they can.
std::string lacks_memory(const at::Tensor& tensor);

// Allocates memory for the tensors of a job. Page faults, not the copy, dominate the cost of
// filling fresh memory. So tensors lie one behind the other in blocks that are advised to be huge
// pages, from 128 KiB up each in pages of its own. These pages go back to the system with their
// tensor, whatever lives beside it. The rest of a block goes back with this object: destroy it
// before the tensors are filled, so that no huge page reaches past the last tensor. Smaller
// tensors, and jobs smaller than a huge page, use torch's allocator.
class NewMemory {
 public:
  explicit NewMemory(std::uint64_t of_the_job) : of_the_job_(of_the_job) {}
  ~NewMemory();
  NewMemory(const NewMemory&) = delete;
  NewMemory& operator=(const NewMemory&) = delete;

  // Returns a contiguous, uninitialized tensor. The caller guarantees that its size in bytes fits
  // in 64 bits. If it lies in pages of its own, it begins `shift` bytes, less than a page, behind
  // the start of one. Throws Error(OutOfMemory).
  at::Tensor tensor(at::IntArrayRef shape, c10::ScalarType type, std::uint64_t shift = 0);

 private:
  const std::uint64_t of_the_job_;  // about how many bytes its tensors have
  Bytes left_;
};

// Returns a contiguous, uninitialized tensor on any other device. Throws Error(OutOfMemory).
at::Tensor new_on(c10::Device device, at::IntArrayRef shape, c10::ScalarType type);

// Returns a tensor of zeros that takes memory only where it is written to: a shape that costs its
// file nothing costs no memory either. Throws Error(OutOfMemory).
at::Tensor new_zeros(at::IntArrayRef shape, c10::ScalarType type);

// Returns a tensor over bytes of a mapping. Its storage covers only these bytes, keeps the mapping
// alive, and gives back the memory of its whole pages when it is destroyed.
at::Tensor mapped_tensor(std::shared_ptr<Mapping> mapping, Bytes part, at::IntArrayRef shape,
                         c10::ScalarType type);

std::uint64_t byte_size(at::IntArrayRef shape, c10::ScalarType type);

// Returns the bytes of a contiguous tensor, on its device. (view() keeps the stride of a tensor of
// one element, whatever it is, and then finds no bytes.)
at::Tensor contiguous_bytes(const at::Tensor& tensor);

// Returns the bytes of a strided tensor's elements in row-major order, on its device: without a
// copy if it is contiguous.
at::Tensor row_major_bytes(const at::Tensor& tensor);

// Returns the bytes of a contiguous tensor on the CPU.
Bytes tensor_bytes(const at::Tensor& tensor);

}  // namespace tensorizer
