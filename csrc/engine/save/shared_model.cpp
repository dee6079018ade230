#include "engine/save/shared_model.h"

#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "format/safetensors/shard_index.h"
#include "io/places/open.h"

namespace tensorizer {

namespace {

std::string stem_of(const std::string& uri) {
  const std::optional<std::string> name = file_name_of(uri);
  if (!name || !name->ends_with(kSingleSuffix)) {
    throw Error(ErrorKind::InvalidArgument,
                "several processes save a model to a folder, or to a prefix in S3 or Azure");
  }
  return name->substr(0, name->size() - kSingleSuffix.size());
}

SinkOptions sharing_access(SinkOptions options) {
  options.access = std::make_shared<SharedAccess>();
  return options;
}

}  // namespace

SharedModel::SharedModel(std::string uri, const SaveOptions& options)
    : uri_(std::move(uri)),
      options_(sharing_access(options.sink)),
      names_(stem_of(uri_)),
      publication_(uri_, names_, options_, cancel_) {}

std::vector<std::string> SharedModel::choose_names(std::size_t count) {
  if (count > kMostShards) {
    throw Error(ErrorKind::InvalidArgument, "the model would have " + std::to_string(count) +
                                                " files, and it can have " +
                                                std::to_string(kMostShards));
  }
  chosen_ = count == 1 ? std::vector{names_.single()} : publication_.choose_names(count);
  return chosen_;
}

void SharedModel::add(SharedSave& file) {
  files_.push_back(file.release(chosen_.at(files_.size())));
}

}  // namespace tensorizer
