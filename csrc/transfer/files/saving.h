// Prepares tensors for a save.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/options.h"
#include "engine/save/save.h"
#include "engine/save/shared_model.h"
#include "engine/save/shared_save.h"
#include "io/sink.h"
#include "io/source.h"
#include "transfer/device/staging.h"

namespace tensorizer {

// The arguments of a save: its target, and how it is written.
struct SaveRequest {
  std::string uri{};
  // One file that is already open, to write instead of `uri`; or null.
  std::unique_ptr<Sink> sink{};
  std::vector<std::string> names{};
  std::vector<at::Tensor> tensors{};
  std::optional<c10::ScalarType> dtype{};  // as in LoadRequest
  HashKinds hashes{};
  std::int64_t threads = 0;
  OptionList options{};
  // May be given without any text, which a safetensors file can hold.
  std::optional<Metadata> metadata{};
};

// What the save of one tensor needs. Keeps the tensor alive.
struct Saving {
  TensorSpec spec;
  SaveItem item;
  at::Tensor tensor;
  std::optional<std::size_t> tied_to{};  // the number of the saving that has the same memory
};

// Returns how to save a tensor. Throws Error(InvalidArgument) for a tensor that cannot be saved:
// one that is not strided, has a dtype that the format does not hold, or has no memory of its own.
// A tensor is cast to `dtype` if a load would cast it.
Saving prepare_saving(std::string name, const at::Tensor& tensor, Staging& staging,
                      TensorType type = TensorType::StateDictEntry, std::uint16_t module_index = 0,
                      std::optional<c10::ScalarType> dtype = {});

// Ties those that are the same memory and whose data is stored. Their number must fit in 32 bits.
void tie_savings(std::span<Saving> savings);

// Adds the tensors and their ties to the layout, and returns the data of the tensors. Moves their
// specs away.
std::vector<SaveItem> add_to(Layout& layout, std::span<Saving> savings);

// Returns the settings of a save. Call after staging.begin(). `staging` must outlive the settings.
SaveSettings save_settings(const SaveOptions& options, int threads, Staging& staging);

// Returns a save of one file by several processes. The tensors say the shapes and dtypes of the
// whole tensors, and may be on the meta device. Throws what prepare_saving() and SharedSave throw.
std::unique_ptr<SharedSave> shared_save(SaveRequest request);
// Returns what publishes a model whose files are such saves. Throws what SharedModel throws.
std::unique_ptr<SharedModel> shared_model(std::string uri, const OptionList& options);

// Throws Error(InvalidArgument) if the sink writes in place to the file that a tensor is mapped
// from, because that would overwrite the tensor while it is read.
void check_not_overwritten(const Sink& sink, std::span<const Saving> savings);

}  // namespace tensorizer
