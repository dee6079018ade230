// The front door for C++ programs: load, load_into, load_constants, save, Reader, Writer,
// set_secret, set_key.
//
//     auto tensors = tensorizer::load("model.tensors");
//     tensorizer::save("copy.tensors", tensors);
//     tensorizer::load_into(module, "model.tensors");  // a torch::jit::Module
//     tensorizer::load_constants(package, "model.tensors");  // an AOTIModelPackageLoader
//
// What fails throws tensorizer::Error. A program that links this library has torch.ops.tensorizer
// and torch.classes.tensorizer in its scripted modules as well.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/key.h"
#include "io/secret.h"
#include "transfer/constants.h"
#include "transfer/module.h"
#include "transfer/options.h"
#include "transfer/reader.h"
#include "transfer/writer.h"

namespace tensorizer {

using TensorMap = std::map<std::string, at::Tensor>;

// Every tensor of a file.
inline TensorMap load(const std::string& uri, const LoadRequest& request = {},
                      const OptionList& options = {}) {
  Reader reader(uri, options);
  const std::vector<std::string> names = reader.names();
  const std::vector<at::Tensor> tensors = reader.load(std::nullopt, request);
  TensorMap map;
  for (std::size_t i = 0; i < names.size(); ++i) map.emplace(names[i], tensors[i]);
  return map;
}

// Fills tensors in place, checking names, shapes and dtypes first.
inline void load_into(const std::string& uri, const TensorMap& outputs,
                      Verify verify = Verify::None, const OptionList& options = {}) {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : outputs) {
    names.push_back(name);
    tensors.push_back(tensor);
  }
  Reader(uri, options).load_into(names, tensors, verify);
}

// Saves tensors under their names, in the order of the map, with both hashes.
inline void save(const std::string& uri, const TensorMap& tensors, HashKinds hashes = {true, true},
                 const OptionList& options = {}) {
  std::vector<std::string> names;
  std::vector<at::Tensor> values;
  for (const auto& [name, tensor] : tensors) {
    names.push_back(name);
    values.push_back(tensor);
  }
  save(uri, names, values, hashes, 0, options);
}

}  // namespace tensorizer
