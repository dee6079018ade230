// The C++ API: includes all other public headers.
//
//     auto tensors = tensorizer::load("model.tensors");
//     tensorizer::save("copy.tensors", tensors);
//     tensorizer::load_into(module, "model.tensors");  // a torch::jit::Module
//     tensorizer::load_constants(package, "model.tensors");  // an AOTIModelPackageLoader
//
// A program that links the library also has torch.ops.tensorizer and torch.classes.tensorizer in
// its scripted modules.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "tensorizer_ops/constants.h"
#include "tensorizer_ops/error.h"
#include "tensorizer_ops/fill.h"
#include "tensorizer_ops/hooks.h"
#include "tensorizer_ops/keys.h"
#include "tensorizer_ops/module.h"
#include "tensorizer_ops/options.h"
#include "tensorizer_ops/reader.h"
#include "tensorizer_ops/secrets.h"
#include "tensorizer_ops/stored_tensor.h"
#include "tensorizer_ops/version.h"
#include "tensorizer_ops/writer.h"

namespace tensorizer {

using TensorMap = std::map<std::string, at::Tensor>;

// Loads every tensor of a file. Throws what Reader::load() throws. Thread-safe.
TensorMap load(const std::string& uri, const LoadRequest& request = {},
               const OptionList& options = {});

// Fills tensors in place, after it has checked all names, shapes and dtypes. Throws what
// Reader::load_into() throws. Thread-safe; the tensors must not be used meanwhile.
void load_into(const std::string& uri, const TensorMap& outputs, Verify verify = Verify::None,
               const OptionList& options = {});

// Saves tensors under their names, in the order of the map. Throws what save() in writer.h throws.
void save(const std::string& uri, const TensorMap& tensors, HashKinds hashes = kUsualHashes,
          const OptionList& options = {}, const Metadata& metadata = {});

}  // namespace tensorizer
