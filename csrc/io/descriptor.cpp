#include "io/descriptor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace tensorizer {

namespace {

// How often to try to open a file on which another process has a lease.
constexpr std::chrono::milliseconds kLeaseInterval{5};
// For how long. The system ends a lease that is in the way after 45 s by default, but the owner of
// the file may take another one at once.
constexpr std::chrono::seconds kLeasePatience{60};

}  // namespace

int Descriptor::close() noexcept {
  if (number_ < 0) return 0;
  // On Linux the descriptor is gone even when close() was interrupted.
  return ::close(std::exchange(number_, -1)) == 0 || errno == EINTR ? 0 : errno;
}

Descriptor open_descriptor(int folder, const std::string& path, int flags, unsigned mode) {
  if (path.find('\0') != path.npos) {  // what is before it names another file
    errno = EINVAL;
    return Descriptor();
  }
  for (;;) {
    const int number = openat(folder, path.c_str(), flags | O_CLOEXEC, mode);
    if (number >= 0 || errno != EINTR) return Descriptor(number);
  }
}

Descriptor open_unblocked(const std::string& path, int flags, Cancel& cancel, unsigned mode) {
  const Clock::time_point deadline = Clock::now() + kLeasePatience;
  for (;;) {
    Descriptor file = open_descriptor(AT_FDCWD, path, flags | O_NONBLOCK, mode);
    if (file || errno != EWOULDBLOCK) return file;
    if (Clock::now() >= deadline) {
      throw Error(ErrorKind::TimedOut,
                  "cannot open " + quote(path, 4096) +
                      ": for a minute, another process has held a lease on it or renewed it",
                  EWOULDBLOCK, path);
    }
    cancel.sleep(kLeaseInterval);
  }
}

std::optional<FileIdentity> identity_of(int descriptor) noexcept {
  struct stat status;
  if (fstat(descriptor, &status) != 0) return std::nullopt;
  return FileIdentity{status.st_dev, status.st_ino};
}

iovec IoCursor::piece(std::size_t index) const noexcept {
  if (bytes_ != nullptr) return {bytes_[index].data(), bytes_[index].size()};
  // writev() takes the same struct as readv(), and does not change the bytes.
  return {const_cast<std::byte*>(const_bytes_[index].data()), const_bytes_[index].size()};
}

std::span<iovec> IoCursor::next(std::uint64_t most) noexcept {
  std::size_t count = 0;
  std::uint64_t wanted = std::min(most, left_);
  std::uint64_t skip = taken_;
  for (std::size_t index = index_; wanted > 0 && count < vectors_.size(); ++index) {
    iovec vector = piece(index);
    vector.iov_base = static_cast<std::byte*>(vector.iov_base) + skip;
    vector.iov_len = std::min(vector.iov_len - skip, wanted);
    skip = 0;
    if (vector.iov_len == 0) continue;
    vectors_[count++] = vector;
    wanted -= vector.iov_len;
  }
  return {vectors_.data(), count};
}

void IoCursor::advance(std::uint64_t moved) noexcept {
  left_ -= moved;
  while (moved > 0) {
    const std::uint64_t of_piece = std::min(piece(index_).iov_len - taken_, moved);
    taken_ += of_piece;
    moved -= of_piece;
    if (taken_ == piece(index_).iov_len) {
      ++index_;
      taken_ = 0;
    }
  }
}

std::size_t IoCursor::fill(ConstBytes bytes) noexcept {
  std::size_t done = 0;
  while (done < bytes.size() && left_ > 0) {
    std::size_t copied = 0;
    for (const iovec piece : next(bytes.size() - done)) {
      std::memcpy(piece.iov_base, bytes.data() + done + copied, piece.iov_len);
      copied += piece.iov_len;
    }
    advance(copied);
    done += copied;
  }
  return done;
}

std::uint64_t read_at(int file, std::uint64_t offset, std::span<const Bytes> pieces,
                      const std::string& path, Cancel& cancel) {
  IoCursor cursor(pieces);
  std::uint64_t done = 0;
  while (cursor.left() > 0) {
    cancel.check();
    const std::span<iovec> vectors = cursor.next();
    const ssize_t moved = preadv(file, vectors.data(), static_cast<int>(vectors.size()),
                                 static_cast<off_t>(offset + done));
    if (moved < 0) {
      if (errno == EINTR) continue;
      if (errno == EFAULT) {
        throw Error(ErrorKind::SystemError,
                    "cannot read " + quote(path, 4096) +
                        ": the memory of a tensor cannot be written; a file that it is mapped from "
                        "may be open for reading only, or have been truncated",
                    EFAULT, path);
      }
      throw system_error(errno, "cannot read", path);
    }
    if (moved == 0) break;
    cursor.advance(static_cast<std::uint64_t>(moved));
    done += static_cast<std::uint64_t>(moved);
  }
  return done;
}

void write_at(int file, std::uint64_t offset, std::span<const ConstBytes> pieces,
              const std::string& path, Cancel& cancel) {
  IoCursor cursor(pieces);
  std::uint64_t done = 0;
  while (cursor.left() > 0) {
    cancel.check();
    const std::span<iovec> vectors = cursor.next();
    const ssize_t moved = pwritev(file, vectors.data(), static_cast<int>(vectors.size()),
                                  static_cast<off_t>(offset + done));
    if (moved < 0) {
      if (errno == EINTR) continue;
      throw_write_error(errno, path);
    }
    // The system reports an error if it cannot write; retrying a write of 0 bytes could loop
    // forever.
    if (moved == 0) throw_write_error(ENOSPC, path);
    cursor.advance(static_cast<std::uint64_t>(moved));
    done += static_cast<std::uint64_t>(moved);
  }
}

bool wait_until_ready(int stream, short events, const std::string& path, Cancel& cancel,
                      Clock::time_point deadline) {
  for (;;) {
    cancel.check();
    pollfd polled{stream, events, 0};
    const int ready = poll(&polled, 1, static_cast<int>(kPollInterval.count()));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw system_error(errno, "cannot wait for", path);
    if (Clock::now() >= deadline) return false;
  }
}

void throw_write_error(int system_errno, const std::string& path) {
  if (system_errno == EFAULT) {
    throw Error(ErrorKind::SystemError,
                "cannot write " + quote(path, 4096) +
                    ": the memory of the data cannot be read; a file that it is mapped from may "
                    "have been truncated",
                system_errno, path);
  }
  throw system_error(system_errno, "cannot write", path);
}

}  // namespace tensorizer
