// Opens the file or the files of a model.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/cancel.h"
#include "engine/options.h"
#include "io/source.h"

namespace tensorizer {

// Opens what `uri` names: a file of tensors; the index of a sharded safetensors model, with its
// shards, as one source; a folder of this machine with one .tensors file, with one such index, or
// with one safetensors file that is not one of several; or a folder on a server in which the model
// has a usual name. While a save replaces an index by a single file or the reverse, or if it was
// killed then, the folder is the new model as soon as that is whole. Throws what open_source()
// throws; InvalidArgument for a folder with several, or with shards and no index; InvalidFormat for
// a malformed index; NotFound for a shard that does not exist; Unavailable if others replace the
// index again and again.
std::unique_ptr<Source> open_model(const std::string& uri, const LoadOptions& options,
                                   Cancel& cancel);

// Returns whether the name ends as those of files of models do, also if it has behind that what a
// server may ignore: blanks, dots, encoded slashes, parameters (";a=b"). With a slash behind it,
// somebody means a folder.
bool has_name_of_file(const std::string& uri);

// Throws Crypto for a folder with such a name, or with that of one of the files that its bundle has
// `listed`. It may have been put in the place of a file that must be signed, with a file in it that
// was signed under another name.
void refuse_name_of_file(const std::string& folder, std::span<const std::string> listed = {});

}  // namespace tensorizer
