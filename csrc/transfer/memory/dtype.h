// Converts between the format's dtypes and torch's.
#pragma once

#include <c10/core/ScalarType.h>

#include "format/dtype.h"

namespace tensorizer {

c10::ScalarType scalar_type(DType dtype) noexcept;

// Throws Error(InvalidArgument) for a type that the format has no dtype for (quantized types).
DType format_dtype(c10::ScalarType type, const std::string& tensor_name);

// Returns the name without "torch.", for messages: "float32".
std::string dtype_name(c10::ScalarType type);

// Returns whether `dtype=` casts the type: it casts real floating tensors, and all others keep
// theirs.
bool is_castable(c10::ScalarType type) noexcept;

// Returns whether a tensor of type `stored` can fill one of type `wanted`, with `cast` also by a
// cast.
bool fits(c10::ScalarType stored, c10::ScalarType wanted, bool cast) noexcept;

// Returns the type that a load with `dtype` gives a tensor of type `stored`.
c10::ScalarType cast_type(c10::ScalarType stored, std::optional<c10::ScalarType> dtype) noexcept;

}  // namespace tensorizer
