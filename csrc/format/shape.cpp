#include "format/shape.h"

#include <algorithm>

namespace tensorizer {

namespace {

// Returns whether the strides of a contiguous tensor fit into signed 64-bit integers. In them, a
// dimension of 0 counts as 1, and the first one does not count.
bool has_strides(std::span<const std::int64_t> shape) noexcept {
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 1;) {
    if (__builtin_mul_overflow(stride, std::max<std::int64_t>(shape[i], 1), &stride)) return false;
  }
  return true;
}

}  // namespace

std::optional<std::uint64_t> byte_size(std::span<const std::int64_t> shape,
                                       std::uint32_t element_size) noexcept {
  // From the first dimension on, as torch and the safetensors library multiply: what follows a
  // dimension of 0 has no limit but that of the strides.
  std::uint64_t elements = 1;
  for (const std::int64_t dimension : shape) {
    if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(dimension), &elements)) {
      return std::nullopt;
    }
  }
  std::uint64_t size = 0;
  if (__builtin_mul_overflow(elements, std::uint64_t{element_size}, &size) || size > kMaxSigned ||
      !has_strides(shape)) {
    return std::nullopt;
  }
  return size;
}

}  // namespace tensorizer
