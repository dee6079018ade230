// What a compiler knows of a file before the program runs, and whether it still holds when it does.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/open_file.h"

namespace tensorizer {

// Opens what `uri` names and gives its Source::version(); reads nothing. Throws for a source whose
// bytes come once: tracing would take them away from the program.
std::optional<std::string> traced_version(const std::string& uri, const OptionList& options);

// What the file holds now of each name, cast to `dtype` where that applies.
std::vector<std::string> trace(const std::string& uri, const std::vector<std::string>& names,
                               std::optional<c10::ScalarType> dtype, const OptionList& options);

// A tensor's type and shape as text: "float32[2, 3]".
std::string describe_shape(c10::ScalarType type, at::IntArrayRef shape);

// Throws unless each of the selected tensors, cast to `dtype` where that applies, is what tracing
// saw of it.
void check_traced(const OpenFile& file, std::span<const std::uint32_t> selected,
                  std::optional<c10::ScalarType> dtype, std::span<const std::string> traced);

}  // namespace tensorizer
