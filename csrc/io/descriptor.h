// A file descriptor that closes itself, and functions that read and write whole lists of pieces in
// as many system calls as that takes.
#pragma once

#include <sys/uio.h>

#include <array>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/cancel.h"
#include "base/world.h"
#include "io/file_identity.h"

namespace tensorizer {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) noexcept : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() { close(); }

  int get() const noexcept { return number_; }
  explicit operator bool() const noexcept { return number_ >= 0; }

  // Closes the descriptor. Returns 0 or the errno of close(), with which some network file systems
  // report a failed write.
  int close() noexcept;

 private:
  int number_ = -1;
};

// Opens `path` relative to `folder` (AT_FDCWD: the working directory), with O_CLOEXEC. Returns an
// empty Descriptor and sets errno on failure.
Descriptor open_descriptor(int folder, const std::string& path, int flags, unsigned mode = 0);

// Opens `path` with O_NONBLOCK, so that no FIFO is waited for. Waits while another process has a
// lease on the file, which this asks for: open() does so as well, but cannot be cancelled. Throws
// TimedOut after a minute of that.
Descriptor open_unblocked(const std::string& path, int flags, Cancel& cancel, unsigned mode = 0);

// The rest of a list of pieces that is being read or written, as iovecs.
class IoCursor {
 public:
  // The most bytes of one system call, so that a cancel is seen soon.
  static constexpr std::uint64_t kMost = 8 << 20;

  explicit IoCursor(std::span<const Bytes> pieces) : IoCursor(pieces.data(), nullptr, pieces) {}
  explicit IoCursor(std::span<const ConstBytes> pieces)
      : IoCursor(nullptr, pieces.data(), pieces) {}

  std::uint64_t left() const noexcept { return left_; }

  // Returns the next pieces, of at most `most` bytes in total; valid until the next call.
  std::span<iovec> next(std::uint64_t most = kMost) noexcept;
  void advance(std::uint64_t moved) noexcept;

  // Copies as much of `bytes` as there is room for, and returns how many bytes that was.
  std::size_t fill(ConstBytes bytes) noexcept;

 private:
  template <typename Piece>
  IoCursor(const Bytes* bytes, const ConstBytes* const_bytes, std::span<const Piece> pieces)
      : bytes_(bytes), const_bytes_(const_bytes) {
    for (const Piece piece : pieces) left_ += piece.size();
  }

  iovec piece(std::size_t index) const noexcept;

  // Exactly one of the two is set.
  const Bytes* bytes_;
  const ConstBytes* const_bytes_;
  std::size_t index_ = 0;
  std::uint64_t taken_ = 0;  // of the piece at index_
  std::uint64_t left_ = 0;
  std::array<iovec, 256> vectors_;
};

// Reads from `offset` on until the pieces are full or the file ends. Returns the number of bytes
// read.
std::uint64_t read_at(int file, std::uint64_t offset, std::span<const Bytes> pieces,
                      const std::string& path, Cancel& cancel);

// Writes all pieces from `offset` on.
void write_at(int file, std::uint64_t offset, std::span<const ConstBytes> pieces,
              const std::string& path, Cancel& cancel);

// Blocks until poll() reports one of `events` (POLLIN, POLLOUT), an error or a hang-up. Returns
// false if the deadline passes first. Throws within kPollInterval of a cancel.
bool wait_until_ready(int stream, short events, const std::string& path, Cancel& cancel,
                      Clock::time_point deadline = Clock::time_point::max());

// Throws the system_error() for a failed write. For EFAULT the message says that the caller's
// memory cannot be read.
[[noreturn]] void throw_write_error(int system_errno, const std::string& path);

}  // namespace tensorizer
