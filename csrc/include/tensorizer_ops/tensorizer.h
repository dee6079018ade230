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
#include <optional>
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
#include "tensorizer_ops/trust.h"
#include "tensorizer_ops/updated.h"
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

// Writes what turns one version of a model into another. `options` are those of loads and of saves.
// Throws Error(InvalidArgument) for a file that can be read only once or is a delta itself.
void delta(const std::string& base, const std::string& fresh, const std::string& target,
           HashKinds hashes = kUsualHashes, const OptionList& options = {});

// Makes the newer version of a model from the older one and a delta. The base and the result are
// compared with what they must be. Without a target, the new version replaces the base, in its
// format and with its hashes; returns false if it is the base already. Throws
// Error(InvalidArgument) if the base is another model, and Error(InvalidFormat) for a damaged
// delta.
bool apply(const std::string& delta, const std::string& base,
           const std::optional<std::string>& target = std::nullopt, const OptionList& options = {});

// The same for tensors in memory, which keep their memory. None is touched before all of them were
// compared. If an error comes later, its message says that they are between two models.
bool apply(const std::string& delta, const TensorMap& tensors, const OptionList& options = {});

}  // namespace tensorizer
