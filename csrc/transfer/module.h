// TorchScript modules whose weights live in a file.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <string>

#include "transfer/fill.h"

namespace tensorizer {

// Fills the parameters and buffers of a module from a file, under their names in its state dict:
// in place, or, where the module has none of its own memory for them, with what was loaded.
void load_into(torch::jit::Module& module, const std::string& uri, const FillRequest& request = {},
               const OptionList& options = {});

}  // namespace tensorizer
