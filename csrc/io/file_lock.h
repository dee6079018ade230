// A lock that saves of all processes take in turn: a hidden file that is there while one of them
// holds it. Where a file system has no locks, or the file cannot be opened, nobody waits.
#pragma once

#include <string>

#include "base/cancel.h"
#include "io/descriptor.h"

namespace tensorizer {

// Locks an open file for this process, until it is closed. Returns false and sets errno
// (EWOULDBLOCK: another one has locked it) if that cannot be done now.
bool lock_file(const Descriptor& file) noexcept;
// Returns whether an open file still has a name.
bool has_name(const Descriptor& file) noexcept;

class FileLock {
 public:
  // Blocks until no other FileLock of this path exists, in any process.
  FileLock(std::string path, Cancel& cancel);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  // Returns whether others wait; if not, they cannot be made to.
  bool holds() const noexcept { return holds_; }

 private:
  const std::string path_;
  Descriptor file_;
  bool holds_ = false;
};

}  // namespace tensorizer
