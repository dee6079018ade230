#include "transfer/blocks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace tensorizer {

namespace {

// Calls `use(block, offset)` for blocks of `tensor` that together are its elements `first` to
// `first + count` in row-major order; `offset` counts from `first`.
template <typename Use>
void for_each_block(const at::Tensor& tensor, std::int64_t first, std::int64_t count,
                    std::int64_t offset, const Use& use) {
  if (count == tensor.numel()) {
    use(tensor, offset);
    return;
  }
  const std::int64_t row = tensor.numel() / tensor.size(0);
  std::int64_t at = first / row;
  const auto part_of_row = [&](std::int64_t begin, std::int64_t length) {
    for_each_block(tensor.select(0, at), begin, length, offset, use);
    offset += length;
    count -= length;
    ++at;
  };
  if (const std::int64_t begin = first % row; begin > 0 || count < row) {
    part_of_row(begin, std::min(count, row - begin));
  }
  if (const std::int64_t rows = count / row; rows > 0) {
    use(tensor.narrow(0, at, rows), offset);
    offset += rows * row;
    count -= rows * row;
    at += rows;
  }
  if (count > 0) part_of_row(0, count);
}

at::Tensor over(std::byte* memory, at::IntArrayRef shape, c10::ScalarType type) {
  return at::from_blob(memory, shape, at::TensorOptions().dtype(type));
}

// A type without copy kernels (bits, sub-byte integers) moves as the bytes of its elements.
at::Tensor as_plain(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Float4_e2m1fn_x2:
    case c10::ScalarType::UInt1:
    case c10::ScalarType::UInt2:
    case c10::ScalarType::UInt3:
    case c10::ScalarType::UInt4:
    case c10::ScalarType::UInt5:
    case c10::ScalarType::UInt6:
    case c10::ScalarType::UInt7:
    case c10::ScalarType::Int1:
    case c10::ScalarType::Int2:
    case c10::ScalarType::Int3:
    case c10::ScalarType::Int4:
    case c10::ScalarType::Int5:
    case c10::ScalarType::Int6:
    case c10::ScalarType::Int7:
    case c10::ScalarType::Bits1x8:
    case c10::ScalarType::Bits2x4:
    case c10::ScalarType::Bits4x2:
    case c10::ScalarType::Bits8:
      return tensor.view(c10::ScalarType::Byte);
    case c10::ScalarType::Bits16:
      return tensor.view(c10::ScalarType::Short);
    default:
      return tensor;
  }
}

at::Tensor detached(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return as_plain(tensor.detach());
}

}  // namespace

TensorInput::TensorInput(at::Tensor tensor) : tensor_(detached(tensor)) {}

void TensorInput::get(std::uint64_t position, Bytes out) {
  const at::NoGradGuard no_grad;
  const auto size = static_cast<std::int64_t>(tensor_.element_size());
  for_each_block(
      tensor_, static_cast<std::int64_t>(position) / size,
      static_cast<std::int64_t>(out.size()) / size, 0,
      [&](const at::Tensor& block, std::int64_t offset) {
        over(out.data() + offset * size, block.sizes(), tensor_.scalar_type()).copy_(block);
      });
}

TensorOutput::TensorOutput(at::Tensor tensor, c10::ScalarType stored)
    : tensor_(detached(tensor)),
      stored_(stored == tensor.scalar_type() ? tensor_.scalar_type() : stored) {}

void TensorOutput::put(std::uint64_t position, ConstBytes bytes) {
  const at::NoGradGuard no_grad;
  const auto size = static_cast<std::int64_t>(c10::elementSize(stored_));
  // Only read from, but torch has no tensor over constant memory.
  auto* memory = const_cast<std::byte*>(bytes.data());
  for_each_block(tensor_, static_cast<std::int64_t>(position) / size,
                 static_cast<std::int64_t>(bytes.size()) / size, 0,
                 [&](const at::Tensor& block, std::int64_t offset) {
                   block.copy_(over(memory + offset * size, block.sizes(), stored_));
                 });
}

}  // namespace tensorizer
