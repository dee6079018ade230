#include "transfer/memory/blocks.h"

#include <ATen/core/grad_mode.h>

#include "transfer/memory/memory.h"

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

}  // namespace

void make_zero(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  as_plain(tensor.detach()).zero_();
}

Elements::Elements(const at::Tensor& tensor, c10::ScalarType stored) {
  const at::NoGradGuard no_grad;
  const bool is_cast = stored != tensor.scalar_type();
  tensor_ = is_cast ? tensor.detach() : as_plain(tensor.detach());
  stored_ = is_cast ? stored : tensor_.scalar_type();
  if (stored_ == tensor_.scalar_type() && tensor_.is_contiguous() && !tensor_.is_conj() &&
      !tensor_.is_neg()) {
    bytes_ = contiguous_bytes(tensor_);
  }
}

at::Tensor Elements::bytes(std::uint64_t position, std::int64_t size) const {
  return bytes_.defined() ? bytes_.narrow(0, static_cast<std::int64_t>(position), size) : bytes_;
}

template <typename Copy>
void Elements::for_each_pair(std::uint64_t position, const at::Tensor& bytes,
                             const Copy& copy) const {
  const at::NoGradGuard no_grad;
  const at::Tensor flat = bytes.view(stored_);
  const auto first = static_cast<std::int64_t>(position / c10::elementSize(stored_));
  for_each_block(tensor_, first, flat.numel(), 0,
                 [&](const at::Tensor& block, std::int64_t offset) {
                   copy(block, flat.narrow(0, offset, block.numel()).view(block.sizes()));
                 });
}

void Elements::get(std::uint64_t position, const at::Tensor& bytes) const {
  for_each_pair(position, bytes, [](const at::Tensor& block, at::Tensor to) { to.copy_(block); });
}

void Elements::put(std::uint64_t position, const at::Tensor& bytes) const {
  for_each_pair(position, bytes,
                [](at::Tensor block, const at::Tensor& from) { block.copy_(from); });
}

}  // namespace tensorizer
