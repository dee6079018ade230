// Classes of torch.classes.tensorizer that only the Python package uses.
#pragma once

#include <torch/library.h>

#include <cstdint>

namespace tensorizer::ops {

// Returns a number of the library as TorchScript has it.
inline std::int64_t number(std::uint64_t value) { return static_cast<std::int64_t>(value); }

// Register them with the library that is being defined, behind Reader and Writer.
void define_reader_internals(torch::Library& library);
void define_save_internals(torch::Library& library);

}  // namespace tensorizer::ops
