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

// Returns what a file of this format has of what `asked` asks for. Throws Error(InvalidArgument)
// for metadata that no file can hold, and if the format cannot hold what is asked for.
FileKind kind_in(Format format, FileKind asked, Cancel& cancel);

// Returns the layout of a file of a kind that kind_in() has returned for this format. `start` is
// the offset in the target at which the file begins.
std::unique_ptr<Layout> new_layout(Format format, FileKind kind, std::uint64_t start);

// Returns whether a safetensors file that is saved at once has `a` before `b`.
bool comes_first_in_safetensors(const TensorSpec& a, const TensorSpec& b);

}  // namespace tensorizer
