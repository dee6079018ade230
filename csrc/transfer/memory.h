// The memory of tensors, most of it on the CPU.
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

// Whether torch says so that there is no memory.
bool says_out_of_memory(const c10::Error& error);
// Throws Error(OutOfMemory); `what`: "memory on cuda:0".
[[noreturn]] void throw_out_of_memory(std::uint64_t size, std::string_view what,
                                      const std::string& reason = {});

// Runs `take`, which takes `size` bytes; without them, throws Error(OutOfMemory).
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

// Why the elements of a strided tensor cannot be read and written in its own memory; empty where
// they can.
std::string lacks_memory(const at::Tensor& tensor);

// Memory for the tensors of a job. Page faults, not the copy, are what filling fresh memory costs,
// so tensors lie one behind the other in blocks that are advised to be huge pages, from 128 KiB up
// each in pages of its own. These go back to the system with their tensor, whatever lives beside
// it, and what no tensor has taken goes back with this object: let it go before tensors are filled,
// so that no huge page reaches past the last one. A job without the bytes of a huge page gets what
// torch's allocator has at hand.
class NewMemory {
 public:
  explicit NewMemory(std::uint64_t of_the_job) : of_the_job_(of_the_job) {}
  ~NewMemory();
  NewMemory(const NewMemory&) = delete;
  NewMemory& operator=(const NewMemory&) = delete;

  // A contiguous tensor that is still to be filled; the caller knows that its size is a number of
  // bytes. Throws Error(OutOfMemory).
  at::Tensor tensor(at::IntArrayRef shape, c10::ScalarType type);

 private:
  const std::uint64_t of_the_job_;  // about how many bytes its tensors have
  Bytes left_;
};

// A contiguous tensor on any other device. Throws Error(OutOfMemory).
at::Tensor new_on(c10::Device device, at::IntArrayRef shape, c10::ScalarType type);

// A tensor of zeros that takes memory only where it is written to, so that a shape from a file,
// which costs that file nothing, costs nothing here. Throws Error(OutOfMemory).
at::Tensor new_zeros(at::IntArrayRef shape, c10::ScalarType type);

// A tensor over bytes of a mapping. Its storage covers just these, keeps the mapping alive, and
// gives back the memory of its whole pages when it goes.
at::Tensor mapped_tensor(std::shared_ptr<Mapping> mapping, Bytes part, at::IntArrayRef shape,
                         c10::ScalarType type);

std::uint64_t byte_size(at::IntArrayRef shape, c10::ScalarType type);

// The bytes of a contiguous tensor on the CPU.
Bytes tensor_bytes(const at::Tensor& tensor);

}  // namespace tensorizer
