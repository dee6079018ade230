#include "io/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace tensorizer {

namespace {

// A file that another user has created may be open for reads only.
Descriptor open_lock(const std::string& path, Cancel& cancel) {
  Descriptor file = open_unblocked(path, O_CREAT | O_RDWR | O_NOFOLLOW, cancel, 0666);
  if (!file) file = open_unblocked(path, O_RDONLY | O_NOFOLLOW, cancel);
  return file;
}

}  // namespace

bool lock_file(const Descriptor& file) noexcept {
  return flock(file.get(), LOCK_EX | LOCK_NB) == 0;
}

bool has_name(const Descriptor& file) noexcept {
  struct stat status;
  return fstat(file.get(), &status) == 0 && status.st_nlink > 0;
}

// The holder removes the file when it lets go. A waiter that has the removed file open opens the
// path again, which creates a new one.
FileLock::FileLock(std::string path, Cancel& cancel) : path_(std::move(path)) {
  do {
    file_ = open_lock(path_, cancel);
    while (file_ && !(holds_ = lock_file(file_)) && errno == EWOULDBLOCK && has_name(file_)) {
      cancel.sleep(kPollInterval);
    }
  } while (file_ && !has_name(file_));
}

FileLock::~FileLock() {
  if (file_) unlink(path_.c_str());
}

}  // namespace tensorizer
