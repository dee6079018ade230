// Applies a delta to tensors in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "base/cancel.h"
#include "engine/move/move.h"
#include "engine/open/open_file.h"

namespace tensorizer {

// Makes the new model of tensors in memory, on any device, which keep their memory. They must be
// the model that the delta was made from, whose digest is computed before any of them is touched;
// each block is then checked before it is written. Returns false if they are the new model already.
//
// Throws InvalidArgument if they are another model, or if the new one has other names, dtypes or
// shapes; and what reading the delta throws. If some of them have changed by then, the message says
// so.
bool apply_in_memory(OpenFile& delta, const std::vector<std::string>& names,
                     const std::vector<at::Tensor>& tensors, int threads, Progress& progress,
                     Cancel& cancel);

}  // namespace tensorizer
