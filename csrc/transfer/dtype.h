// The format's element types as torch's.
#pragma once

#include <c10/core/ScalarType.h>

#include "format/dtype.h"

namespace tensorizer {

c10::ScalarType scalar_type(DType dtype) noexcept;

// Throws Error(InvalidArgument) for what the format has no dtype for (quantized types).
DType format_dtype(c10::ScalarType type, const std::string& tensor_name);

// As in torch.float32, for messages.
std::string dtype_name(c10::ScalarType type);

// Whether `dtype=` applies: real floating tensors are cast, everything else keeps its type.
bool is_castable(c10::ScalarType type) noexcept;

// Whether a tensor of type `stored` can fill one of type `wanted`; with `cast`, by a cast.
bool fits(c10::ScalarType stored, c10::ScalarType wanted, bool cast) noexcept;

// What a tensor of type `stored` becomes when `dtype` is asked for.
c10::ScalarType cast_type(c10::ScalarType stored, std::optional<c10::ScalarType> dtype) noexcept;

}  // namespace tensorizer
