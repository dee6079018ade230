#include "engine/save/shard_publication.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/move/workers.h"
#include "engine/open/read_shard_index.h"
#include "format/safetensors/shard_index.h"
#include "io/places/open.h"

namespace tensorizer {

UnpublishedFile::UnpublishedFile(std::string own_name, std::unique_ptr<Sink> own_sink,
                                 const Layout& layout)
    : name(std::move(own_name)),
      sink(std::move(own_sink)),
      head_size(layout.prefix_size()),
      body_size(layout.file_size()),
      data_size(layout.end()) {
  for (const PlacedTensor& tensor : layout.tensors()) tensors.push_back(tensor.spec.name);
}

ShardPublication::ShardPublication(const std::string& uri, const ShardNames& names,
                                   const SinkOptions& options, Cancel& cancel)
    : uri_(uri), names_(names), options_(options), cancel_(cancel), local_(is_local(uri)) {
  if (local_) {
    const auto unneeded_names = [this](auto files) { return unneeded(std::move(files)); };
    record_.emplace(uri_of(""), names_.stem(), unneeded_names, cancel_);
  }
  older_ = find_older();
}

std::string ShardPublication::uri_of(const std::string& name) const {
  return *sibling_uri(uri_, name, options_.given);
}

// Without a tag, where nobody else can take the same names: a store has no locks, and two saves
// that begin at the same time would mix their shards.
std::vector<std::string> ShardPublication::choose_names(std::size_t count) {
  std::vector<std::string> taken = older_.shards;
  for (const std::string& file : files_here(kSingleSuffix, cancel_)) {
    taken.push_back(file.substr(file.rfind('/') + 1));
  }
  std::ranges::sort(taken);
  const auto is_taken = [&](const std::string& name) {
    return std::ranges::binary_search(taken, name);
  };
  std::vector<std::string> names(count);
  const auto name_all = [&](const std::string& tag) {
    for (std::size_t i = 0; i < count; ++i) names[i] = names_.shard(i, count, tag);
  };
  name_all({});
  bool free = record_ && older_.known && !record_->shared();
  std::string tag = record_ ? record_->tag() : random_tag();
  while (!free || std::ranges::any_of(names, is_taken)) {
    free = true;
    name_all(std::exchange(tag, random_tag()));
  }
  return names;
}

std::string ShardPublication::replaced_by(std::size_t file) const {
  if (!local_) return {};
  if (older_.shards.empty()) return uri_of(names_.single());
  return uri_of(older_.shards[std::min(file, older_.shards.size() - 1)]);
}

std::unique_ptr<Sink> ShardPublication::open(const std::string& uri, std::string replaces) const {
  SinkOptions options = options_;
  options.replaces = std::move(replaces);
  std::unique_ptr<Sink> sink = open_sink(uri, options, cancel_);
  if (sink->in_place()) {
    throw Error(ErrorKind::InvalidArgument,
                "option 'max_shard_size' needs a folder in which new files can be made, and " +
                    sink->label() + " can only be written in place");
  }
  return sink;
}

// Returns what a model of this name has, whose index a save to this target wrote.
ShardPublication::Older ShardPublication::find_older() const {
  Older older;
  SourceOptions options{options_.given};
  options.access = options_.access;
  try {
    const std::unique_ptr<Source> file = open_source(uri_of(names_.index()), options, cancel_);
    older.exists = true;
    const ShardIndex index = read_shard_index(*file, cancel_);
    for (const std::string_view name : index.shards()) {
      if (names_.is_shard(name)) older.shards.emplace_back(name);
    }
  } catch (const Error& error) {
    const ErrorKind kind = error.kind();
    const bool is_forbidden = kind == ErrorKind::PermissionDenied;
    if (!is_forbidden && kind != ErrorKind::NotFound && kind != ErrorKind::InvalidFormat) throw;
    older.known = !is_forbidden;
    // S3 may refuse to tell whether there is an object.
    older.exists |= is_forbidden && local_;
  }
  return older;
}

std::string ShardPublication::index_text(std::span<const UnpublishedFile> files) {
  std::vector<ShardedName> names;
  std::uint64_t total = 0;
  for (const UnpublishedFile& file : files) {
    for (const std::string& name : file.tensors) names.push_back({name, file.name});
    total += file.data_size;
  }
  return shard_index_text(std::move(names), total);
}

bool ShardPublication::is_file(const std::string& name) const {
  std::error_code error;
  return std::filesystem::is_regular_file(uri_of(name), error);
}

// Returns the files of this machine beside the target.
std::vector<std::string> ShardPublication::files_here(std::string_view suffix,
                                                      Cancel& cancel) const {
  return files_in(uri_of(""), suffix, cancel).value_or(std::vector<std::string>());
}

// Returns those of these names, which a record lists, that are of no model any more: a single file
// beside an index, an index beside a single file, and shards of this model that are in no index.
// Throws if an index cannot be read.
std::vector<std::string> ShardPublication::unneeded(std::vector<std::string> names) const {
  Cancel cancel{Cancel::Unattended{}};
  const auto lists = [&](const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  std::vector<std::string> first;
  if (lists(names_.index()) && is_file(names_.single())) {
    first.push_back(names_.index());
  } else if (lists(names_.single()) && is_file(names_.index())) {
    first.push_back(names_.single());
  }
  std::erase_if(names, [&](const std::string& name) { return !names_.is_shard(name); });
  for (const std::string& file : files_here(kShardIndexSuffix, cancel)) {
    if (!first.empty() && file.ends_with("/" + first[0])) continue;
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
  names.insert(names.begin(), first.begin(), first.end());
  return names;
}

// There is always one whole model: the older model has no files of the new names, and the index is
// replaced when they are there.
void ShardPublication::publish(std::span<UnpublishedFile> files) {
  const std::string text = index_text(files);
  const ConstBytes bytes = as_bytes(text);
  std::unique_ptr<Sink> index;
  if (files.size() > 1) {
    index = open(uri_of(names_.index()));
    index->begin(0, bytes.size());
    index->write(0, {&bytes, 1}, KeptUntil::End, cancel_);
  }
  if (record_) record_->take_turn(cancel_);
  // Another save may have replaced the model since this one began.
  const Older older = find_older();
  cancel_.check();
  // On this machine that is quick, and nothing should interrupt it.
  Cancel unattended{Cancel::Unattended{}};
  Cancel& cancel = local_ ? unattended : cancel_;
  if (record_) write_record(files, index != nullptr, older);
  if (index != nullptr) {
    finish_all(files, cancel);
    index->finish(bytes.size(), cancel);
    if (local_) remove(names_.single(), cancel);
  } else {
    files.front().sink->finish(files.front().body_size, cancel);
    if (older.exists) remove_index();
  }
  if (local_) {
    close_record();
  } else {
    remove_older(older);
  }
}

// Of an older model in one file and one in several, the record lists neither: which of them is the
// model is not known, and the save may be killed before it has a new one.
void ShardPublication::write_record(std::span<const UnpublishedFile> files, bool has_index,
                                    const Older& older) {
  std::vector<SaveRecord::File> added;
  std::vector<std::string> replaced = older.shards;
  if (has_index) {
    for (const UnpublishedFile& file : files) {
      added.push_back({file.name, file.head_size + file.body_size});
    }
    if (!older.exists) replaced.push_back(names_.single());
  } else if (!is_file(names_.single())) {
    replaced.push_back(names_.index());
  }
  record_->write(added, replaced, options_.fsync);
}

// Older files that cannot be removed now stay until the next save removes them.
void ShardPublication::close_record() {
  try {
    record_->close();
  } catch (const Error& error) {
    log("the older files of " + quote(uri_of(names_.single()), 4096) +
        " stay until the next save of this name with max_shard_size can remove them: " +
        std::string(error.message()));
  }
  record_.reset();
}

void ShardPublication::finish_all(std::span<UnpublishedFile> files, Cancel& cancel) const {
  try {
    for_each_number(files.size(), local_ ? 1 : kWaitingWorkers, cancel,
                    [&](std::size_t i) { files[i].sink->finish(files[i].body_size, cancel); });
  } catch (...) {
    if (!local_) withdraw(files);
    throw;
  }
}

// Removes new objects of a store, also those of requests whose responses have not come. Another
// Ctrl-C stops it.
void ShardPublication::withdraw(std::span<UnpublishedFile> files) const {
  Cancel cancel;
  try {
    for (UnpublishedFile& file : files) {
      file.sink->abort();
      remove(file.name, cancel);
    }
  } catch (const Error&) {
    // The caller has an error to report already.
  }
}

// Removes the index of an older model.
void ShardPublication::remove_index() const {
  try {
    remove(names_.index(), cancel_);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::PermissionDenied) throw;
    throw Error(error.kind(),
                "cannot remove the index of the older model, which this save replaces: " +
                    std::string(error.message()) +
                    "; allow that (in S3 by s3:DeleteObject), or save in another folder",
                error.system_errno(), error.path());
  }
}

// Removes the shards of the older model from a store, if that is allowed.
void ShardPublication::remove_older(const Older& older) const {
  try {
    for_each_number(older.shards.size(), kWaitingWorkers, cancel_,
                    [&](std::size_t i) { remove(older.shards[i], cancel_); });
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::PermissionDenied) throw;
  }
}

void ShardPublication::remove(const std::string& name, Cancel& cancel) const {
  remove_file(uri_of(name), options_, cancel);
}

}  // namespace tensorizer
