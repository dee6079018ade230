// Kernels for the ops of `tensorizer_device` that call libtensorizer_ops_cuda.so (csrc/cuda).
#pragma once

#include <memory>
#include <string>

#include <torch/library.h>

namespace tensorizer {

// Loads the library at `path` and registers its kernels under a dispatch key. They stay registered
// for the lifetime of the result. Returns null if the library cannot be used, and sets `why` to the
// reason; `why` stays empty if there is no such file.
std::unique_ptr<torch::Library> register_cuda_library(const std::string& path, c10::DispatchKey key,
                                                      std::string& why);

}  // namespace tensorizer
