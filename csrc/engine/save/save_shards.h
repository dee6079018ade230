// Saves the tensors of a model in one file, or in several if that would be too large.
#pragma once

#include <string>
#include <vector>

#include "engine/options.h"
#include "engine/save/save.h"
#include "format/layout.h"

namespace tensorizer {

// The tensors of a model in their order, and the kind of its files. items[i] is the data of
// specs[i].
struct SavedModel {
  FileKind kind{};
  bool sorted = false;  // whether each file gets the order of the safetensors library
  std::vector<TensorSpec> specs{};
  std::vector<SaveItem> items{};
};

// Saves a safetensors model in files of at most options.max_shard_size bytes of tensors, which is
// not 0. A tensor that is larger gets a file of its own. If one file is enough, that is `uri`.
// Otherwise "m.safetensors" becomes "m-00001-of-00002.safetensors" and so on, and
// "m.safetensors.index.json", which lists them.
//
// No file appears before all data has been written. Then the files appear, under names that neither
// an older model nor another save uses ("m-7f3a91c2-00001-of-00002.safetensors"), and the index is
// replaced. So there is always one whole model. At the end, what is left of the older one is
// removed: the one file, on this machine only, and the shards that its index listed and whose names
// are made of this one. If that fails half-way, the files of this save are removed; if the process
// is killed, the next save does that (io/save_record). On this machine, saves of one name take
// turns in that (engine/save/shard_publication).
//
// Throws InvalidArgument for a target that is not a file in a folder or in S3, and what
// new_layout() and save_file() throw.
void save_in_shards(const std::string& uri, SavedModel model, const SaveOptions& options,
                    const SaveSettings& settings, Progress& progress, Cancel& cancel);

}  // namespace tensorizer
