// Fills the tensors of a module from a file.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "transfer/reader.h"

namespace tensorizer {

// Which names a file must have: the same ones, all of those that are to be filled, or any.
enum class Names { Same, All, Any };

struct FillRequest {
  std::optional<c10::Device> device;  // where the tensors are when it is not said
  Names names = Names::Same;
  Verify verify = Verify::None;
  std::int64_t threads = 0;
  // Whether a real floating tensor may have another dtype in the file; it is cast.
  bool cast = false;
  // What real floating tensors become, with `cast`; what they are when it is not said.
  std::optional<c10::ScalarType> dtype = std::nullopt;
};

// What takes the place of each tensor: the same one, filled where it is, or a new one for another
// device or dtype and for a placeholder, which has a shape but no memory for it (on the meta
// device, or spread out from less). Tied tensors stay tied, and need one of their names only.
// Checks everything before it touches anything, and lists all that does not fit.
std::vector<at::Tensor> fill(Reader& reader, const std::vector<std::string>& names,
                             const std::vector<at::Tensor>& tensors, const FillRequest& request);

}  // namespace tensorizer
