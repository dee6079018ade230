// The folders that a save creates on the way to its files. Those in which nothing is are removed
// again when this object is destroyed.
#pragma once

#include <string>
#include <vector>

#include "io/descriptor.h"

namespace tensorizer {

class NewFolders {
 public:
  NewFolders() = default;
  ~NewFolders();
  NewFolders(const NewFolders&) = delete;
  NewFolders& operator=(const NewFolders&) = delete;

  // Creates what is missing of `folder`, which ends with a slash, for the file `path`.
  void create(const std::string& folder, const std::string& path);

  // Writes their names to stable storage.
  void sync() const;

 private:
  std::vector<std::string> created_;
};

// Opens a folder for sync_folder(), relative to the folder `start`.
Descriptor open_folder(int start, const std::string& path);

// Writes the names in a folder to stable storage. `path` is for messages.
void sync_folder(const Descriptor& folder, const std::string& path);

}  // namespace tensorizer
