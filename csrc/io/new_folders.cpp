#include "io/new_folders.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/error.h"

namespace tensorizer {

NewFolders::~NewFolders() {
  for (auto folder = created_.rbegin(); folder != created_.rend(); ++folder) rmdir(folder->c_str());
}

void NewFolders::create(const std::string& folder, const std::string& path) {
  std::string whole = folder;
  if (whole[0] != '/') {
    char* const here = getcwd(nullptr, 0);
    if (here == nullptr) throw system_error(errno, "cannot find the working directory of", path);
    whole = std::string(here) + "/" + whole;
    std::free(here);
  }
  for (std::size_t end = whole.find('/', 1); end != std::string::npos;
       end = whole.find('/', end + 1)) {
    const std::string part = whole.substr(0, end);
    if (mkdir(part.c_str(), 0777) == 0) {
      created_.push_back(part);
    } else if (errno != EEXIST) {
      throw system_error(errno, "cannot create the folder", part);
    }
  }
}

void NewFolders::sync() const {
  for (const std::string& created : created_) {
    sync_folder(open_folder(AT_FDCWD, created + "/.."), created);
  }
}

Descriptor open_folder(int start, const std::string& path) {
  Descriptor folder = open_descriptor(start, path, O_RDONLY | O_DIRECTORY);
  if (!folder) throw system_error(errno, "cannot open the folder", path);
  return folder;
}

void sync_folder(const Descriptor& folder, const std::string& path) {
  // EINVAL: the file system does not support fsync() on folders.
  if (fsync(folder.get()) != 0 && errno != EINVAL) {
    throw system_error(errno, "cannot sync the folder", path);
  }
}

}  // namespace tensorizer
