#include "tensorizer_ops/tensorizer.h"

#include <vector>

namespace tensorizer {

namespace {

struct NamedTensors {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
};

NamedTensors split(const TensorMap& map) {
  NamedTensors split;
  for (const auto& [name, tensor] : map) {
    split.names.push_back(name);
    split.tensors.push_back(tensor);
  }
  return split;
}

}  // namespace

TensorMap load(const std::string& uri, const LoadRequest& request, const OptionList& options) {
  Reader reader(uri, options);
  const std::vector<std::string> names = reader.names();
  const std::vector<at::Tensor> tensors = reader.load(std::nullopt, request);
  TensorMap map;
  for (std::size_t i = 0; i < names.size(); ++i) map.emplace(names[i], tensors[i]);
  return map;
}

void load_into(const std::string& uri, const TensorMap& outputs, Verify verify,
               const OptionList& options) {
  const NamedTensors given = split(outputs);
  Reader(uri, options).load_into(given.names, given.tensors, verify);
}

void save(const std::string& uri, const TensorMap& tensors, HashKinds hashes,
          const OptionList& options, const Metadata& metadata) {
  const NamedTensors given = split(tensors);
  save(uri, given.names, given.tensors, hashes, 0, options, metadata);
}

}  // namespace tensorizer
