// Fills the tensors of a module from a file.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tensorizer_ops/fill.h"
#include "transfer/files/file_reader.h"

namespace tensorizer {

// Implements Reader::fill().
Filled fill(FileReader& reader, const std::vector<std::string>& names,
            const std::vector<at::Tensor>& tensors, const FillRequest& request);

}  // namespace tensorizer
