// What a compiler knows of a file before the program runs, and the check at run time that it still
// holds.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/open/open_file.h"

namespace tensorizer {

// Opens the file without reading data, and returns its Source::version(). Throws
// Error(InvalidArgument) if the URI or an option holds a secret, and for a source that can be read
// only once: tracing would consume the bytes that the program needs.
std::optional<std::string> traced_version(const std::string& uri, const OptionList& options);

// Returns describe_shape() of each named tensor as the file holds it now, cast to `dtype` where
// that applies. Behind them is a mark if the program wants `all` tensors of the file.
std::vector<std::string> trace(const std::string& uri, const std::vector<std::string>& names,
                               std::optional<c10::ScalarType> dtype, bool all,
                               const OptionList& options);

// Returns a tensor's dtype and shape as text: "float32[2, 3]".
std::string describe_shape(c10::ScalarType type, at::IntArrayRef shape);

// Throws Error(InvalidArgument) unless each of the selected tensors, cast to `dtype` where that
// applies, still has the dtype and shape that tracing saw, and they are all if it saw the mark.
void check_traced(OpenFile& file, std::span<const std::uint32_t> selected,
                  std::optional<c10::ScalarType> dtype, std::span<const std::string> traced);

}  // namespace tensorizer
