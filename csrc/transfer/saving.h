// Tensors as they are saved.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "engine/options.h"
#include "engine/save.h"
#include "io/sink.h"
#include "io/source.h"
#include "transfer/staging.h"

namespace tensorizer {

// What saving one tensor needs; it keeps the tensor alive.
struct Saving {
  TensorSpec spec;
  SaveItem item;
  at::Tensor tensor;
};

// Throws Error(InvalidArgument) for a tensor that cannot be saved: one that is not strided, has a
// dtype that the format does not hold, or no memory behind it.
Saving prepare_saving(std::string name, const at::Tensor& tensor, Staging& staging,
                      TensorType type = TensorType::StateDictEntry, std::uint16_t module_index = 0);

// How the file is written that the options ask for; a key is derived here. Throws
// Error(InvalidArgument) for a CRC32 in an encrypted file, which would tell something about it.
FileKind file_kind(HashKinds hashes, const SaveOptions& options, Cancel& cancel);

// For tensors that are all prepared.
SaveSettings save_settings(const SaveOptions& options, int threads, const Staging& staging);

// Throws Error(InvalidArgument) when a file that is written in place is the one that a tensor is
// mapped from: it would be overwritten while it is read.
void check_not_overwritten(const Sink& sink, std::span<const Saving> savings);
// The same for the file that all of it is read from.
void check_not_overwritten(const Sink& sink, const Source& source);

}  // namespace tensorizer
