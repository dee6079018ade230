#include "engine/save_shards.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "engine/new_layout.h"
#include "engine/read_shard_index.h"
#include "engine/workers.h"
#include "format/name_table.h"
#include "format/safetensors/shard_index.h"
#include "io/open.h"
#include "io/save_record.h"

namespace tensorizer {

namespace {

constexpr std::string_view kSuffix = ".safetensors";
constexpr std::size_t kTag = 4;  // the size of a random_tag()

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
        stem_(stem_of(uri, options)),
        local_(is_local(uri)) {
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
      add_shard(kind, model, groups[i]);
    }
    if (local_) {
      const auto unneeded_names = [this](auto names) { return unneeded(std::move(names)); };
      record_.emplace(uri_of(""), stem_, unneeded_names, cancel_);
    }
    const Older older = older_model();
    choose_names(older);
    // The data of all files is in the progress before the first one is written.
    settings.counted = true;
    progress.total += total_;
    const auto confirm = std::exchange(settings.confirm, {});
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      write(shards_[i], replaced_by(i, older), settings, progress);
    }
    if (confirm) confirm();
    publish();
  }

 private:
  struct Shard {
    std::string name;
    std::unique_ptr<Layout> layout;
    std::vector<SaveItem> items;
    std::unique_ptr<Sink> sink;
  };

  // The model that the save replaces, as far as its index tells.
  struct Older {
    bool known = true;  // false if the index may not be read
    bool exists = false;
    std::vector<std::string> shards;
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

  std::string name_of(std::size_t shard, const std::string& tag) const {
    if (shards_.size() == 1) return stem_ + std::string(kSuffix);
    char number[32];
    std::snprintf(number, sizeof(number), "-%05zu-of-%05zu", shard + 1, shards_.size());
    return stem_ + (tag.empty() ? "" : "-" + tag) + number + std::string(kSuffix);
  }

  // Names the files. Neither the older model nor, on this machine, anybody else has shards of these
  // names: the older ones stay as they are until the new index is there.
  void choose_names(const Older& older) {
    const auto name_all = [&](const std::string& tag) {
      for (std::size_t i = 0; i < shards_.size(); ++i) shards_[i].name = name_of(i, tag);
    };
    name_all({});
    if (shards_.size() == 1) return;
    std::vector<std::string> taken = older.shards;
    for (const std::string& file : files_here(kSuffix, cancel_)) {
      taken.push_back(file.substr(file.rfind('/') + 1));
    }
    std::ranges::sort(taken);
    const auto is_taken = [&](const Shard& shard) {
      return std::ranges::binary_search(taken, shard.name);
    };
    bool free = older.known && !(record_ && record_->shared());
    std::string tag = record_ ? record_->tag() : random_tag();
    while (!free || std::ranges::any_of(shards_, is_taken)) {
      free = true;
      name_all(std::exchange(tag, random_tag()));
    }
  }

  std::string index_name() const { return stem_ + std::string(kShardIndexSuffix); }

  // Returns the files of this machine beside the target.
  std::vector<std::string> files_here(std::string_view suffix, Cancel& cancel) const {
    return files_in(uri_of(""), suffix, cancel).value_or(std::vector<std::string>());
  }

  std::string uri_of(const std::string& name) const {
    return *sibling_uri(uri_, name, sink_options_.given);
  }

  void check_names(std::span<const TensorSpec> specs) const {
    std::vector<std::string_view> names;
    for (const TensorSpec& spec : specs) names.push_back(spec.name);
    check_saved_names(names, cancel_);
  }

  void add_shard(const FileKind& kind, SavedModel& model, const Group& group) {
    Shard shard{{}, new_layout(Format::Safetensors, kind, 0), {}, nullptr};
    for (const std::size_t i : group) {
      shard.layout->add(std::move(model.specs[i]));
      shard.items.push_back(model.items[i]);
    }
    shard.layout->check_size();
    total_ += shard.layout->end();
    shards_.push_back(std::move(shard));
  }

  // Returns the path of the file whose place a new one of this machine takes.
  std::string replaced_by(std::size_t shard, const Older& older) const {
    if (!local_) return {};
    if (older.shards.empty()) return uri_of(stem_ + std::string(kSuffix));
    return uri_of(older.shards[std::min(shard, older.shards.size() - 1)]);
  }

  std::unique_ptr<Sink> open(const std::string& uri, std::string replaces = {}) {
    SinkOptions options = sink_options_;
    options.replaces = std::move(replaces);
    std::unique_ptr<Sink> sink = open_sink(uri, options, cancel_);
    if (sink->in_place()) {
      refuse_shards("needs a folder in which new files can be made, and " + sink->label() +
                    " can only be written in place");
    }
    return sink;
  }

  void write(Shard& shard, std::string replaces, const SaveSettings& settings, Progress& progress) {
    shard.sink = open(shards_.size() == 1 ? uri_ : uri_of(shard.name), std::move(replaces));
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
    std::unique_ptr<Sink> sink = open(uri_of(index_name()));
    const ConstBytes bytes = as_bytes(text);
    sink->begin(0, bytes.size());
    sink->write(0, {&bytes, 1}, KeptUntil::End, cancel_);
    return sink;
  }

  // Returns what a model of this name has, whose index a save to this target wrote.
  Older older_model() const {
    Older older;
    SourceOptions options{sink_options_.given};
    options.access = sink_options_.access;
    try {
      const std::unique_ptr<Source> file = open_source(uri_of(index_name()), options, cancel_);
      older.exists = true;
      const ShardIndex index = read_shard_index(*file, cancel_);
      for (const std::string_view name : index.shards()) {
        if (is_shard_name(name)) older.shards.emplace_back(name);
      }
    } catch (const Error& error) {
      const ErrorKind kind = error.kind();
      // A store is not listed: nothing else says which shards belong to an index that is no index.
      const bool is_damaged = kind == ErrorKind::InvalidFormat;
      older.known = kind == ErrorKind::NotFound || (is_damaged && local_);
      if (!older.known && !is_damaged && kind != ErrorKind::PermissionDenied) throw;
    }
    return older;
  }

  // Returns whether name_of() returns this name for some shard.
  bool is_shard_name(std::string_view name) const {
    constexpr std::string_view kForm = "-00000-of-00000";
    if (!name.starts_with(stem_) || !name.ends_with(kSuffix)) return false;
    std::string_view rest = name.substr(stem_.size());
    if (rest.size() != kForm.size() + kSuffix.size()) {
      if (!rest.starts_with('-') || !is_tag(rest.substr(1, kTag))) return false;
      rest.remove_prefix(1 + kTag);
    }
    return rest.size() == kForm.size() + kSuffix.size() &&
           std::ranges::equal(rest.substr(0, kForm.size()), kForm, [](char c, char form) {
             return form == '0' ? is_digit(c) : c == form;
           });
  }

  // Returns those of these names of files in the folder of this machine that are of shards of this
  // model and in no index. Throws if an index cannot be read.
  std::vector<std::string> unneeded(std::vector<std::string> names) const {
    Cancel cancel{Cancel::Unattended{}};
    std::erase_if(names, [&](const std::string& name) { return !is_shard_name(name); });
    for (const std::string& file : files_here(kShardIndexSuffix, cancel)) {
      try {
        const ShardIndex index = read_shard_index(*open_source(file, {}, cancel), cancel);
        std::erase_if(names, [&](const std::string& name) {
          return std::ranges::binary_search(index.shards(), std::string_view(name));
        });
      } catch (const Error& error) {
        const ErrorKind kind = error.kind();
        if (kind != ErrorKind::NotFound && kind != ErrorKind::InvalidFormat) throw;
      }
    }
    return names;
  }

  // Removes the index of an older model.
  void remove_index() const {
    try {
      remove(index_name(), cancel_);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::PermissionDenied) throw;
      throw Error(error.kind(),
                  "cannot remove the index of the older model, which this save replaces: " +
                      std::string(error.message()) +
                      "; allow that (in S3 by s3:DeleteObject), or save in another folder",
                  error.system_errno(), error.path());
    }
  }

  void remove(const std::string& name, Cancel& cancel) const {
    remove_file(uri_of(name), sink_options_, cancel);
  }

  // The files get their names, of which the older model has none, and then the index is replaced.
  // So there is always one whole model.
  void publish() {
    const bool alone = shards_.size() == 1;
    const std::string text = alone ? std::string() : index_text();
    const std::unique_ptr<Sink> index = alone ? nullptr : write_index(text);
    // Another save may have replaced the model since the files got their names.
    const Older older = older_model();
    cancel_.check();
    // On this machine that is quick, and nothing should interrupt it.
    Cancel unattended{Cancel::Unattended{}};
    Cancel& cancel = local_ ? unattended : cancel_;
    if (record_) write_record(older);
    if (alone) {
      finish(shards_.front(), cancel);
      if (older.exists) remove_index();
    } else {
      finish_all(cancel);
      index->finish(text.size(), cancel);
      if (local_) remove(stem_ + std::string(kSuffix), cancel);
    }
    if (local_) {
      record_.reset();  // what cannot be removed now is left to the next save
    } else {
      remove_older(older);
    }
  }

  void write_record(const Older& older) {
    std::vector<SaveRecord::File> added;
    if (shards_.size() > 1) {
      for (const Shard& shard : shards_) {
        added.push_back({shard.name, shard.layout->prefix_size() + shard.layout->file_size()});
      }
    }
    record_->write(added, older.shards, sink_options_.fsync);
  }

  void finish_all(Cancel& cancel) {
    std::vector<std::uint8_t> published(shards_.size());
    try {
      for_each_number(shards_.size(), local_ ? 1 : kWaitingWorkers, cancel, [&](std::size_t i) {
        finish(shards_[i], cancel);
        published[i] = 1;
      });
    } catch (...) {
      if (!local_) withdraw(published);
      throw;
    }
  }

  // Removes new objects of a store. Another Ctrl-C stops it.
  void withdraw(std::span<const std::uint8_t> published) const {
    Cancel cancel;
    try {
      for (std::size_t i = 0; i < published.size(); ++i) {
        if (published[i] != 0) remove(shards_[i].name, cancel);
      }
    } catch (const Error&) {
      // The caller has an error to report already.
    }
  }

  // Removes the shards of the older model from a store, if that is allowed.
  void remove_older(const Older& older) const {
    try {
      for_each_number(older.shards.size(), kWaitingWorkers, cancel_, [&](std::size_t i) {
        if (std::ranges::find(shards_, older.shards[i], &Shard::name) == shards_.end()) {
          remove(older.shards[i], cancel_);
        }
      });
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::PermissionDenied) throw;
    }
  }

  const std::string& uri_;
  const std::uint64_t most_;
  SinkOptions sink_options_;
  Cancel& cancel_;
  const std::string stem_;
  const bool local_;
  std::optional<SaveRecord> record_;  // on this machine
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
