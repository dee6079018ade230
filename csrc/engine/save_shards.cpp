#include "engine/save_shards.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "engine/new_layout.h"
#include "engine/read_shard_index.h"
#include "engine/workers.h"
#include "format/name_table.h"
#include "format/safetensors/shard_index.h"
#include "io/open.h"

namespace tensorizer {

namespace {

constexpr std::string_view kSuffix = ".safetensors";

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

class ShardedSave {
 public:
  ShardedSave(const std::string& uri, const SaveOptions& options, Cancel& cancel)
      : uri_(uri),
        most_(options.max_shard_size),
        sink_options_(options.sink),
        cancel_(cancel),
        stem_(stem_of(uri, options)) {
    sink_options_.access = std::make_shared<SharedAccess>();
  }

  void run(const FileKind& kind, SavedModel model, bool sorted, SaveSettings settings,
           Progress& progress) {
    check_names(model.specs);
    std::vector<Group> groups = grouped(model.specs, most_);
    if (groups.size() > kMostShards) {
      refuse_shards("is so small that there would be " + std::to_string(groups.size()) +
                    " files, and a model can have " + std::to_string(kMostShards));
    }
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (sorted) sort_group(groups[i], model.specs);
      add_shard(kind, model, groups[i], name_of(i, groups.size()));
    }
    // The data of all files is in the progress before the first one is written.
    settings.counted = true;
    progress.total += total_;
    const auto confirm = std::exchange(settings.confirm, {});
    for (Shard& shard : shards_) write(shard, settings, progress);
    if (confirm) confirm();
    const std::vector<std::string> old = old_shards();
    if (shards_.size() == 1) {
      finish(shards_.front(), cancel_);
      remove_index(false);
    } else {
      publish();
    }
    remove_old(old);
  }

 private:
  struct Shard {
    std::string name;
    std::unique_ptr<Layout> layout;
    std::vector<SaveItem> items;
    std::unique_ptr<Sink> sink;
  };

  static std::string stem_of(const std::string& uri, const SaveOptions& options) {
    if (format_of(uri, options.format) != Format::Safetensors) {
      refuse_shards("is for safetensors files, and this save writes a .tensors file");
    }
    const std::optional<std::string> name = file_name_of(uri);
    if (!name) {
      refuse_shards(
          "needs a target that others can be saved beside: a file in a folder, or an object in "
          "S3");
    }
    if (!name->ends_with(kSuffix) || name->size() == kSuffix.size()) {
      refuse_shards(
          "needs a target whose name ends with .safetensors, as the names of its files are made "
          "of it");
    }
    return name->substr(0, name->size() - kSuffix.size());
  }

  std::string name_of(std::size_t shard, std::size_t count) const {
    if (count == 1) return stem_ + std::string(kSuffix);
    char number[32];
    std::snprintf(number, sizeof(number), "-%05zu-of-%05zu", shard + 1, count);
    return stem_ + number + std::string(kSuffix);
  }

  std::string index_name() const { return stem_ + std::string(kShardIndexSuffix); }

  std::string uri_of(const std::string& name) const {
    return *sibling_uri(uri_, name, sink_options_.given);
  }

  void check_names(std::span<const TensorSpec> specs) const {
    std::vector<std::string_view> names;
    for (const TensorSpec& spec : specs) names.push_back(spec.name);
    check_saved_names(names, cancel_);
  }

  void add_shard(const FileKind& kind, SavedModel& model, const Group& group, std::string name) {
    Shard shard{std::move(name), new_layout(Format::Safetensors, kind, 0), {}, nullptr};
    for (const std::size_t i : group) {
      shard.layout->add(std::move(model.specs[i]));
      shard.items.push_back(model.items[i]);
    }
    shard.layout->check_size();
    total_ += shard.layout->end();
    shards_.push_back(std::move(shard));
  }

  void write(Shard& shard, const SaveSettings& settings, Progress& progress) {
    shard.sink = open_sink(shards_.size() == 1 ? uri_ : uri_of(shard.name), sink_options_, cancel_);
    if (shard.sink->in_place()) {
      refuse_shards("needs a folder in which new files can be made, and " + shard.sink->label() +
                    " can only be written in place");
    }
    write_file(*shard.sink, *shard.layout, shard.items, settings, progress, cancel_);
    if (shards_.size() > 1) shard.sink->prepare(shard.layout->file_size(), cancel_);
  }

  static void finish(Shard& shard, Cancel& cancel) {
    shard.sink->finish(shard.layout->file_size(), cancel);
  }

  std::string index_text() const {
    std::vector<ShardedName> names;
    for (const Shard& shard : shards_) {
      for (const PlacedTensor& tensor : shard.layout->tensors()) {
        names.push_back({tensor.spec.name, shard.name});
      }
    }
    return shard_index_text(std::move(names), total_);
  }

  std::unique_ptr<Sink> write_index(const std::string& text) {
    std::unique_ptr<Sink> sink = open_sink(uri_of(index_name()), sink_options_, cancel_);
    const ConstBytes bytes = as_bytes(text);
    sink->begin(0, bytes.size());
    sink->write(0, {&bytes, 1}, KeptUntil::End, cancel_);
    return sink;
  }

  // Returns the shards that an index of this machine lists and that a save to this target wrote.
  std::vector<std::string> old_shards() const {
    std::vector<std::string> old;
    if (!is_local(uri_)) return old;
    try {
      const std::unique_ptr<Source> file = open_source(uri_of(index_name()), {}, cancel_);
      const ShardIndex index = read_shard_index(*file, cancel_);
      for (const std::string_view name : index.shards()) {
        if (is_shard_name(name)) old.emplace_back(name);
      }
    } catch (const Error& error) {
      // There is no index, or it is no longer usable.
      if (error.kind() == ErrorKind::Cancelled) throw;
    }
    return old;
  }

  // Returns whether name_of() returns this name for some shard.
  bool is_shard_name(std::string_view name) const {
    constexpr std::string_view kForm = "-00000-of-00000";
    if (name.size() != stem_.size() + kForm.size() + kSuffix.size()) return false;
    if (!name.starts_with(stem_) || !name.ends_with(kSuffix)) return false;
    return std::ranges::equal(
        name.substr(stem_.size(), kForm.size()), kForm,
        [](char c, char form) { return form == '0' ? is_digit(c) : c == form; });
  }

  void remove_old(std::span<const std::string> old) const {
    for (const std::string& name : old) {
      if (std::ranges::find(shards_, name, &Shard::name) == shards_.end()) {
        remove(name, false, cancel_);
      }
    }
  }

  bool has_index() const {
    SourceOptions options{sink_options_.given, 0, 1};
    options.access = sink_options_.access;
    try {
      open_source(uri_of(index_name()), options, cancel_);
      return true;
    } catch (const Error& error) {
      // A server may refuse to tell whether there is one.
      const ErrorKind kind = error.kind();
      if (kind != ErrorKind::NotFound && kind != ErrorKind::PermissionDenied) throw;
      return false;
    }
  }

  // Removes the index of an older model. Stores with versions remember removals, so that nothing is
  // removed there that does not exist.
  void remove_index(bool follow) const {
    if (!is_local(uri_) && !has_index()) return;
    try {
      remove(index_name(), follow, cancel_);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::PermissionDenied) throw;
      throw Error(error.kind(),
                  "cannot remove the index of the older model, which this save replaces: " +
                      std::string(error.message()) +
                      "; allow that (in S3 by s3:DeleteObject), or save in another folder",
                  error.system_errno(), error.path());
    }
  }

  void remove(const std::string& name, bool follow, Cancel& cancel) const {
    remove_file(uri_of(name), follow, sink_options_, cancel);
  }

  // Without the old index, nobody opens shards of two saves together (engine/open_model).
  void publish() {
    const bool local = is_local(uri_);
    const std::string text = index_text();
    const std::unique_ptr<Sink> index = write_index(text);
    cancel_.check();
    remove_index(true);  // a link to it stays, because the new one is written to where it points
    // Files of this machine only get their names now, which nothing should interrupt.
    Cancel unattended{Cancel::Unattended{}};
    Cancel& cancel = local ? unattended : cancel_;
    std::vector<std::uint8_t> published(shards_.size());
    try {
      for_each_number(shards_.size(), local ? 1 : kWaitingWorkers, cancel, [&](std::size_t i) {
        finish(shards_[i], cancel);
        published[i] = 1;
      });
      index->finish(text.size(), cancel);
    } catch (...) {
      if (local) withdraw(published, cancel);
      throw;
    }
    if (local) remove_file(uri_, false, sink_options_, cancel);
  }

  void withdraw(std::span<const std::uint8_t> published, Cancel& cancel) const {
    for (std::size_t i = 0; i < published.size(); ++i) {
      if (published[i] == 0) continue;
      try {
        remove(shards_[i].name, false, cancel);
      } catch (const Error&) {
        // The caller has an error to report already.
      }
    }
  }

  const std::string& uri_;
  const std::uint64_t most_;
  SinkOptions sink_options_;
  Cancel& cancel_;
  const std::string stem_;
  std::vector<Shard> shards_;
  std::uint64_t total_ = 0;  // bytes of data
};

}  // namespace

void save_in_shards(const std::string& uri, const FileKind& kind, SavedModel model, bool sorted,
                    const SaveOptions& options, const SaveSettings& settings, Progress& progress,
                    Cancel& cancel) {
  ShardedSave(uri, options, cancel).run(kind, std::move(model), sorted, settings, progress);
}

}  // namespace tensorizer
