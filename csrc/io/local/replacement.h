// A file that is written out of sight and then takes the place of its target in one step.
//
// It has no name until then (O_TMPFILE) or, on file systems that cannot do that, a hidden one in
// the target's folder. When it is destroyed before commit() has returned, it is gone, and so are
// the folders that were created for it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/descriptor.h"

namespace tensorizer {

class Replacement {
 public:
  // For the target `path`, which is no symbolic link; missing folders on the way are created. It
  // gets the access of an existing target (io/local/access.h). Null when there is a target that
  // cannot be replaced: its folder admits no new file, it belongs to somebody else in a sticky
  // folder, or it is a mount point.
  static std::unique_ptr<Replacement> create(const std::string& path);

  ~Replacement();
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  // Open for reading and writing.
  int file() const noexcept { return file_.get(); }

  // Puts the file under the target's name; with `fsync`, the name is on stable storage afterwards.
  void commit(bool fsync);

 private:
  Replacement(const std::string& path, std::string folder, std::string name);

  void create_folders();
  bool create_file(bool exists, unsigned mode);
  void publish();

  const std::string path_;
  const std::string folder_;
  const std::string name_;  // of the target, in folder_
  std::vector<std::string> created_;
  Descriptor folder_descriptor_;
  Descriptor file_;
  std::string temporary_;  // the name that file_ has in folder_ until it is committed, or empty
  bool committed_ = false;
};

}  // namespace tensorizer
