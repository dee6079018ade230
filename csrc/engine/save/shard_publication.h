// Makes the files of a save appear in place of an older model of the same name: files with shards,
// then their index, or a single file. docs/design/saves.md has the steps.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "engine/open/shard_names.h"
#include "format/layout.h"
#include "io/options.h"
#include "io/save_record.h"
#include "io/sink.h"

namespace tensorizer {

// A file that has been written, and does not appear before its sink is finished.
struct UnpublishedFile {
  UnpublishedFile(std::string own_name, std::unique_ptr<Sink> own_sink, const Layout& layout);

  std::string name;
  std::unique_ptr<Sink> sink;
  std::uint64_t head_size;
  std::uint64_t body_size;
  std::uint64_t data_size;           // of all tensors
  std::vector<std::string> tensors;  // their names
};

class ShardPublication {
 public:
  // Begins a save to `uri`, the target of a model in one file. Removes what killed saves have left.
  // Keeps references to the arguments. Throws what sibling_uri() throws.
  ShardPublication(const std::string& uri, const ShardNames& names, const SinkOptions& options,
                   Cancel& cancel);

  // Returns names for so many shards. Neither the older model has files of these names nor any
  // other save.
  std::vector<std::string> choose_names(std::size_t count);

  // Returns the URI of a file of this name beside the target.
  std::string uri_of(const std::string& name) const;

  // Returns the path of the file of the older model whose place a new one of this machine takes;
  // empty in a store.
  std::string replaced_by(std::size_t file) const;

  // Opens a file beside the target. Throws InvalidArgument if it would be written in place.
  std::unique_ptr<Sink> open(const std::string& uri, std::string replaces = {}) const;

  // Publishes one file, or several and then their index. If that fails, the older model stays. Then
  // removes what is left of the older model. Called once.
  void publish(std::span<UnpublishedFile> files);

 private:
  // The model that the save replaces, as far as its index tells.
  struct Older {
    bool known = true;  // false if the index may not be read
    bool exists = false;
    std::vector<std::string> shards;
  };

  static std::string index_text(std::span<const UnpublishedFile> files);
  Older find_older() const;
  bool is_file(const std::string& name) const;
  std::vector<std::string> files_here(std::string_view suffix, Cancel& cancel) const;
  std::vector<std::string> unneeded(std::vector<std::string> names) const;
  void write_record(std::span<const UnpublishedFile> files, bool has_index, const Older& older);
  void close_record();
  void finish_all(std::span<UnpublishedFile> files, Cancel& cancel) const;
  void withdraw(std::span<UnpublishedFile> files) const;
  void remove_index() const;
  void remove_older(const Older& older) const;
  void remove(const std::string& name, Cancel& cancel) const;

  const std::string& uri_;
  const ShardNames& names_;
  const SinkOptions& options_;
  Cancel& cancel_;
  const bool local_;
  std::optional<SaveRecord> record_;  // on this machine
  Older older_;                       // when the save began
};

}  // namespace tensorizer
