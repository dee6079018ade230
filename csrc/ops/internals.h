// Classes of torch.classes.tensorizer that only the Python package uses.
#pragma once

#include <torch/library.h>

namespace tensorizer::ops {

// Register them with the library that is being defined, behind Reader and Writer.
void define_reader_internals(torch::Library& library);
void define_save_internals(torch::Library& library);

}  // namespace tensorizer::ops
