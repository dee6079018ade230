// Makes the layout of a file in the format that is asked for.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "format/catalogue.h"
#include "format/layout.h"

namespace tensorizer {

// Returns the format to write: the one that is asked for or, by default, the one that a name like
// "m.safetensors" or a URI of one stands for, and `.tensors` for a name with an unknown ending or
// none. Throws Error(InvalidArgument) for a name that ends as those of other formats do ("m.pt") or
// almost like ".safetensors". Case makes no difference.
Format format_of(std::string_view uri, std::optional<Format> asked);

// Returns what a file of this format has of what `asked` asks for. Throws Error(InvalidArgument)
// for metadata that no file can hold, and if the format cannot hold what is asked for.
FileKind kind_in(Format format, FileKind asked, Cancel& cancel);

// Returns the layout of a file of a kind that kind_in() has returned for this format. `start` is
// the offset in the target at which the file begins.
std::unique_ptr<Layout> new_layout(Format format, FileKind kind, std::uint64_t start);

// Returns whether a safetensors file that is saved at once has `a` before `b`.
bool comes_first_in_safetensors(const TensorSpec& a, const TensorSpec& b);

}  // namespace tensorizer
