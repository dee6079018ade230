// Publishes a safetensors model in one file or several, each of which several processes have
// written (SharedSave). Of the process that comes first in all of these saves. Used by one thread.
#pragma once

#include <string>
#include <vector>

#include "base/cancel.h"
#include "engine/open/shard_names.h"
#include "engine/options.h"
#include "engine/save/shard_publication.h"
#include "engine/save/shared_save.h"

namespace tensorizer {

class SharedModel {
 public:
  // `uri` is that of the model in one file. Throws InvalidArgument if no others can be beside it,
  // and what ShardPublication throws.
  SharedModel(std::string uri, const SaveOptions& options);

  // Returns the names of so many files, at least one, which are beside `uri`.
  std::vector<std::string> choose_names(std::size_t count);
  // Returns what SharedSave::start() takes for one of them.
  std::string replaced_by(std::size_t file) const { return publication_.replaced_by(file); }
  // Takes the next file, which all processes have written. It does not appear yet.
  void add(SharedSave& file);
  // Makes the files appear in place of an older model, and their index last. If that fails, or if
  // this is not called, the older model stays.
  void publish() { publication_.publish(files_); }

 private:
  const std::string uri_;
  SinkOptions options_;
  Cancel cancel_;
  const ShardNames names_;
  ShardPublication publication_;
  std::vector<std::string> chosen_;
  std::vector<UnpublishedFile> files_;
};

}  // namespace tensorizer
