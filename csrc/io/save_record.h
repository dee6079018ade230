// A hidden file beside the files of a model, which lists those that a save adds and those that it
// replaces. Whatever a record lists and the model no longer needs can be removed: by the save
// itself, or by the next one of that name if the process was killed. Loads of the folder ask
// records which files make up a model while a save replaces it (engine/open/open_model).
//
// A record is locked while its process lives. Where a file system has no locks, records of killed
// processes stay, and saves of one name do not wait for each other.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "io/descriptor.h"
#include "io/file_lock.h"
#include "io/new_folders.h"

namespace tensorizer {

inline constexpr std::size_t kTagSize = 8;
// Returns random hexadecimal digits, to be a part of the names of the files of one save.
std::string random_tag();
// Returns whether random_tag() may return this.
bool is_tag(std::string_view text);

class SaveRecord {
 public:
  struct File {
    std::string name;
    std::uint64_t size;
  };
  // Returns those of these names in the folder that are of files which nobody needs, in the order
  // in which they are to be removed. May throw.
  using Unneeded = std::function<std::vector<std::string>(std::vector<std::string> names)>;

  // Creates the record of a save to `folder`, which ends with a slash, of files whose names begin
  // with `stem`, and creates the folder. Removes what records of killed processes list.
  SaveRecord(const std::string& folder, const std::string& stem, Unneeded unneeded, Cancel& cancel);
  // Does what close() does, and ignores errors: then the next save does it.
  ~SaveRecord();
  SaveRecord(const SaveRecord&) = delete;
  SaveRecord& operator=(const SaveRecord&) = delete;

  // Returns what makes the names of the files of this save, and of no other one.
  const std::string& tag() const noexcept { return tag_; }
  // Returns whether another process saves files of this stem at the same time.
  bool shared() const noexcept { return shared_; }

  // Returns the names of the files in `folder` that records of saves of this stem list and that
  // have not changed since. Leaves out records that cannot be read.
  static std::vector<std::string> listed(const std::string& folder, const std::string& stem);

  // Blocks until no other save of this stem is between this call and its close(). Called before the
  // save looks at what it replaces, and before write().
  void take_turn(Cancel& cancel);

  // Lists the files that are about to appear, and those that they replace and that exist. With
  // `fsync`, the record is on stable storage afterwards.
  void write(std::span<const File> added, std::span<const std::string> replaced, bool fsync);

  // Removes what it lists and nobody needs, then the record, and ends the turn.
  void close();

 private:
  void create(Cancel& cancel);
  void clean_up_others(std::span<const std::string> names, Cancel& cancel);
  // Returns false if that could not be done, and the record stays.
  bool clean_up(const Descriptor& record, const std::string& path, Cancel& cancel) const;
  void remove_listed(int record) const;
  std::string lock_path() const;

  const std::string folder_;
  const std::string stem_;
  const Unneeded unneeded_;
  NewFolders folders_;
  std::string tag_;
  std::string path_;  // empty after close()
  Descriptor file_;
  std::optional<FileLock> turn_;
  bool shared_ = false;
};

}  // namespace tensorizer
