// Makes the layout of a file in the format that is asked for.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "format/catalogue.h"
#include "format/layout.h"

namespace tensorizer {

// Returns the format that a name like "m.safetensors" or a URI of one stands for: `.tensors` for
// all names that end in another way.
Format format_of(std::string_view uri);

// `start` is the offset in the target at which the file begins. Throws Error(InvalidArgument) for
// metadata that no file can hold, and if the format cannot hold what the kind asks for.
std::unique_ptr<Layout> new_layout(Format format, FileKind kind, std::uint64_t start,
                                   Cancel& cancel);

// Returns whether a save of many tensors at once writes `a` before `b`, whatever the caller's
// order.
bool is_saved_before(Format format, const TensorSpec& a, const TensorSpec& b);

}  // namespace tensorizer
