// torch.classes.tensorizer._Internals: what the Python package asks of a Reader beyond its public
// methods. Results of several parts are objects with properties.
#pragma once

#include <torch/library.h>

namespace tensorizer::ops {

// Registers the class with the library that is being defined, after Reader.
void define_reader_internals(torch::Library& library);

}  // namespace tensorizer::ops
