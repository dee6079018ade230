#include "engine/save/save_shards.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "engine/open/shard_names.h"
#include "engine/save/new_layout.h"
#include "engine/save/shard_publication.h"
#include "format/name_table.h"
#include "format/safetensors/shard_index.h"
#include "io/places/open.h"

namespace tensorizer {

namespace {

// The numbers of the tensors in one file.
using Group = std::vector<std::size_t>;

// Fills one file after another. A tensor that is larger than a file may be is alone in one.
std::vector<Group> grouped(std::span<const TensorSpec> specs, std::uint64_t most) {
  std::vector<Group> groups;
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const std::uint64_t added = specs[i].data_size();
    if (groups.empty() || added > most - std::min(size, most)) {
      groups.emplace_back();
      size = 0;
    }
    groups.back().push_back(i);
    size += added;
  }
  if (groups.empty()) groups.emplace_back();
  return groups;
}

void sort_group(Group& group, std::span<const TensorSpec> specs) {
  std::stable_sort(group.begin(), group.end(), [&](std::size_t a, std::size_t b) {
    return comes_first_in_safetensors(specs[a], specs[b]);
  });
}

[[noreturn]] void refuse_shards(const std::string& why) {
  throw Error(ErrorKind::InvalidArgument, "option 'max_shard_size' " + why);
}

ShardNames names_of(const std::string& uri, const SaveOptions& options) {
  if (format_of(uri, options.format) != Format::Safetensors) {
    refuse_shards("is for safetensors files, and this save writes a .tensors file");
  }
  const std::optional<std::string> name = file_name_of(uri);
  if (!name) {
    refuse_shards(
        "needs a target that others can be saved beside: a file in a folder, or an object in S3 or "
        "Azure");
  }
  if (!name->ends_with(kSingleSuffix) || name->size() == kSingleSuffix.size()) {
    refuse_shards(
        "needs a target whose name ends with .safetensors, as the names of its files are made of "
        "it");
  }
  return ShardNames(name->substr(0, name->size() - kSingleSuffix.size()));
}

class ShardedSave {
 public:
  ShardedSave(const std::string& uri, const SaveOptions& options, Cancel& cancel)
      : uri_(uri),
        most_(options.max_shard_size),
        sink_options_(options.sink),
        cancel_(cancel),
        names_(names_of(uri, options)) {
    sink_options_.access = std::make_shared<SharedAccess>();
  }

  void run(SavedModel model, SaveSettings settings, Progress& progress) {
    check_names(model.specs);
    std::vector<Group> groups = grouped(model.specs, most_);
    if (groups.size() > kMostShards) {
      refuse_shards("is so small that there would be " + std::to_string(groups.size()) +
                    " files, and a model can have " + std::to_string(kMostShards));
    }
    for (Group& group : groups) {
      if (model.sorted) sort_group(group, model.specs);
      add_shard(model, group);
    }
    ShardPublication publication(uri_, names_, sink_options_, cancel_);
    // The data of all files is in the progress before the first one is written.
    settings.counted = true;
    progress.total += total_;
    const auto confirm = std::exchange(settings.confirm, {});
    const bool alone = shards_.size() == 1;
    const std::vector<std::string> names =
        alone ? std::vector{names_.single()} : publication.choose_names(shards_.size());
    std::vector<UnpublishedFile> files;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      Layout& layout = *shards_[i].layout;
      std::unique_ptr<Sink> sink =
          publication.open(alone ? uri_ : publication.uri_of(names[i]), publication.replaced_by(i));
      write_file(*sink, layout, shards_[i].items, settings, progress, cancel_);
      files.emplace_back(names[i], std::move(sink), layout);
      if (!alone) files[i].sink->prepare(files[i].body_size, cancel_);
    }
    if (confirm) confirm();
    publication.publish(files);
  }

 private:
  struct Shard {
    std::unique_ptr<Layout> layout;
    std::vector<SaveItem> items;
  };

  void check_names(std::span<const TensorSpec> specs) const {
    std::vector<std::string_view> names;
    for (const TensorSpec& spec : specs) names.push_back(spec.name);
    check_saved_names(names, cancel_);
  }

  void add_shard(SavedModel& model, const Group& group) {
    Shard shard{new_layout(Format::Safetensors, model.kind, 0), {}};
    for (const std::size_t i : group) {
      shard.layout->add(std::move(model.specs[i]));
      shard.items.push_back(model.items[i]);
    }
    shard.layout->check_size();
    total_ += shard.layout->end();
    shards_.push_back(std::move(shard));
  }

  const std::string& uri_;
  const std::uint64_t most_;
  SinkOptions sink_options_;
  Cancel& cancel_;
  const ShardNames names_;
  std::vector<Shard> shards_;
  std::uint64_t total_ = 0;  // bytes of data
};

}  // namespace

void save_in_shards(const std::string& uri, SavedModel model, const SaveOptions& options,
                    const SaveSettings& settings, Progress& progress, Cancel& cancel) {
  ShardedSave(uri, options, cancel).run(std::move(model), settings, progress);
}

}  // namespace tensorizer
