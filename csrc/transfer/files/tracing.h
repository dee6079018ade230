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

class FileReader;

// Opens the file without reading data. Throws Error(InvalidArgument) if the URI or an option holds
// a secret, and for a source that can be read only once: tracing would consume the bytes that the
// program needs.
void check_traceable(const std::string& uri, const OptionList& options);

struct Traced {
  std::vector<std::string> names;
  // Their describe_shape(), and behind them a mark if the program wants all tensors of the file.
  std::vector<std::string> shapes;
};

// Returns what the file holds now of the named tensors, or of all, cast to `dtype` where that
// applies. Throws as check_traceable().
Traced trace(FileReader& reader, const std::optional<std::vector<std::string>>& names,
             std::optional<c10::ScalarType> dtype);

// Returns a tensor's dtype and shape as text: "float32[2, 3]".
std::string describe_shape(c10::ScalarType type, at::IntArrayRef shape);

// Throws Error(InvalidArgument) unless each of the selected tensors, cast to `dtype` where that
// applies, still has the dtype and shape that tracing saw, and they are all if it saw the mark.
void check_traced(OpenFile& file, std::span<const std::uint32_t> selected,
                  std::optional<c10::ScalarType> dtype, std::span<const std::string> traced);

}  // namespace tensorizer
