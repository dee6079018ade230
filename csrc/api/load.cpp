#include "tensorizer_ops/tensorizer.h"

#include <vector>

#include "transfer/files/file_reader.h"

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
  const std::vector<at::Tensor> tensors = reader.load(std::nullopt, request);
  const std::vector<std::string> names = reader.names();
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

void delta(const std::string& base, const std::string& fresh, const std::string& target,
           HashKinds hashes, const OptionList& options) {
  const OptionList loading = options_for(OptionUse::Load, options);
  FileReader newer(fresh, loading);
  FileReader(base, loading)
      .make_delta(newer, target, hashes, options_for(OptionUse::Save, options), 0);
}

bool apply(const std::string& delta, const std::string& base,
           const std::optional<std::string>& target, const OptionList& options) {
  const OptionList loading = options_for(OptionUse::Load, options);
  FileReader older(base, loading);
  return FileReader(delta, loading)
      .apply(older, target, std::nullopt, options_for(OptionUse::Save, options), 0);
}

bool apply(const std::string& delta, const TensorMap& tensors, const OptionList& options) {
  const NamedTensors given = split(tensors);
  return FileReader(delta, options).apply_in_memory(given.names, given.tensors, 0);
}

}  // namespace tensorizer
