// A file that is invisible while it is written, and then replaces its target atomically.
//
// Until then it has no name (O_TMPFILE) or, on file systems without O_TMPFILE, a hidden name in the
// target's folder. If the object is destroyed before commit() has returned, it removes the file and
// the folders that were created for it.
#pragma once

#include <memory>
#include <string>

#include "io/descriptor.h"
#include "io/new_folders.h"

namespace tensorizer {

class Replacement {
 public:
  // Creates the file for the target `path`, which replaces a symbolic link, and missing folders on
  // the way. It gets the access rights of an existing file (io/local/access.h). Returns null if
  // there is a target that cannot be replaced: the process may not create files in its folder,
  // it belongs to the owner of a sticky folder, or it is a mount point. A file that somebody else
  // has made in a sticky folder where others may create files counts as missing; throws
  // PermissionDenied if it cannot be replaced. `named`: the file has a hidden name at once, so that
  // others can open it. `older`: a file whose access rights it gets if there is no target, and
  // if nobody else has made that in such a folder.
  static std::unique_ptr<Replacement> create(const std::string& path, bool named = false,
                                             const std::string& older = {});

  // Opens the file that another process has created for the same target, with `named`, and that is
  // called `name` until it is committed there. Throws NotFound if this process does not see it.
  static std::unique_ptr<Replacement> join(const std::string& path, const std::string& name);

  ~Replacement();
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  // Returns the descriptor of the file, open for reading and writing.
  int file() const noexcept { return file_.get(); }

  // Gives the file the target's name. With `fsync`, the name is on stable storage afterwards.
  void commit(bool fsync);

  // Returns the hidden name of the file; empty if it has none.
  const std::string& name() const noexcept { return temporary_; }
  // Leaves the file to the process that commits it.
  void leave() noexcept { committed_ = true; }

 private:
  Replacement(const std::string& path, std::string folder, std::string name);
  static std::unique_ptr<Replacement> of(const std::string& path);

  bool create_file(bool exists, unsigned mode, bool named);
  void publish();

  const std::string path_;
  const std::string folder_;
  const std::string name_;  // of the target, in folder_
  NewFolders folders_;
  Descriptor folder_descriptor_;
  Descriptor file_;
  std::string temporary_;  // the name of file_ in folder_ until it is committed, or empty
  bool committed_ = false;
};

}  // namespace tensorizer
