// The element types of safetensors files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "format/dtype.h"

namespace tensorizer {

// Returns the type of this name ("F32"); null if the format or torch has no such type.
std::optional<DType> parse_safetensors_dtype(std::string_view name) noexcept;

// Returns the name of a type; empty if the format has none.
std::string_view safetensors_dtype(DType dtype) noexcept;

// Returns the place of a type in the order by which the safetensors library sorts the tensors of a
// file: those of the highest rank come first. Types that the format lacks have the rank -1.
int safetensors_rank(DType dtype) noexcept;

// Returns how many elements of the file make one element of torch along the last dimension.
constexpr std::int64_t elements_in_one(DType dtype) noexcept {
  return dtype == DType::Float4E2M1FNx2 ? 2 : 1;
}

// Returns a dimension as the file has it, of a tensor that has `shape` in torch.
constexpr std::int64_t stored_dimension(DType dtype, std::span<const std::int64_t> shape,
                                        std::size_t dimension) noexcept {
  const bool last = dimension + 1 == shape.size();
  return shape[dimension] * (last ? elements_in_one(dtype) : 1);
}

}  // namespace tensorizer
