// The memory of tensors: the only way to its bytes and addresses, and where new memory comes from.
//
// Some tensors have a shape, a storage and no elements in it, and a pointer into such a storage is
// null or of something else. So nobody else asks torch for a pointer or a storage
// (tools/check_memory.py).
#pragma once

#include <ATen/core/Tensor.h>

#include <c10/util/Exception.h>

#include <compare>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

// Returns why shape, strides and type do not say how the elements of a tensor lie in a storage of
// its own, or an empty string if they do. What they say of a tensor on the meta device counts.
std::string is_not_plain(const at::Tensor& tensor);

// Returns why the elements of a tensor cannot be read and written in its own memory, or an empty
// string if they can: what is_not_plain() returns, or that the storage is too small. A tensor on
// the meta device needs no memory.
std::string lacks_memory(const at::Tensor& tensor);

// Returns whether the storage of a plain tensor is too small for all of its elements side by side:
// on the meta device, and where elements share memory, as in the placeholders of externalize().
bool lacks_memory_for_all(const at::Tensor& tensor);

// Throws Error(InvalidArgument), `what` and the reason, if a tensor lacks memory.
void require_memory(const at::Tensor& tensor, std::string_view what);

// Return the bytes of a contiguous tensor on the CPU. Throw as require_memory() does. The second
// one leaves a copy-on-write tensor as it is.
Bytes tensor_bytes(const at::Tensor& tensor, std::string_view what = "a tensor");
ConstBytes const_bytes(const at::Tensor& tensor, std::string_view what = "a tensor");

// Returns the address of the first element, on any device. The tensor must have elements. Throws as
// require_memory() does.
std::uintptr_t address_of(const at::Tensor& tensor);

// Returns how many bytes of memory there are from the first element to the last one's end. The
// tensor must have elements.
std::uint64_t extent(const at::Tensor& tensor);

// Lets nothing that happens to a file change plain tensors on the CPU (detach_from_files()), except
// where all who map the file share what is written.
void detach_from_files(std::span<const at::Tensor> tensors);

// Tells tensors apart: two have the same key if they have the same elements in the same memory, and
// a change of one changes the other. Any tensor has a key. One without memory of its own is the
// same as no other; those that share a storage that is too small for them are the same.
class MemoryKey {
 public:
  explicit MemoryKey(const at::Tensor& tensor);
  std::strong_ordering operator<=>(const MemoryKey&) const = default;

 private:
  enum class Kind { Address, Storage, Tensor };
  Kind kind_;
  std::uintptr_t place_;
  std::vector<std::int64_t> layout_;
};

// Returns another tensor over the memory of a strided one. Autograd sees changes through either.
at::Tensor same_memory(const at::Tensor& tensor);

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

// Returns a view of a dtype whose copies have the same bits: dtypes without kernels (bits, sub-byte
// integers), and bool, of which torch copies only 0 and 1, are copied and filled as bytes.
at::Tensor as_plain(const at::Tensor& tensor);

// Returns the bytes of a tensor's elements in row-major order, on its device: without a copy if it
// is contiguous. Throws as require_memory() does.
at::Tensor row_major_bytes(const at::Tensor& tensor, std::string_view what);

}  // namespace tensorizer
