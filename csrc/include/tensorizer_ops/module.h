// TorchScript modules whose weights live in a file.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <string>

#include "tensorizer_ops/fill.h"
#include "tensorizer_ops/options.h"

namespace tensorizer {

// Fills the parameters and buffers of a module from a file, under the names of its state dict: in
// place, or with new tensors where the module has no memory for them. Checks all of them before it
// touches the module, which must not be used meanwhile. Returns the names that only one side has,
// which `request` must allow. Throws what Reader::fill() throws.
IncompatibleKeys load_into(torch::jit::Module& module, const std::string& uri,
                           const FillRequest& request = {}, const OptionList& options = {});

}  // namespace tensorizer
