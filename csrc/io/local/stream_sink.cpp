#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/local/open.h"

namespace tensorizer {

namespace {

constexpr std::size_t kGapSize = 64 << 10;

// Blocks SIGPIPE for this thread during its lifetime, so that a write to a pipe without a reader
// fails with EPIPE and raises no signal.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

  ~NoSigpipe() {
    // A signal that was pending before is left pending.
    if (!was_pending_) {
      const timespec no_time{};
      while (sigtimedwait(&sigpipe_, nullptr, &no_time) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t sigpipe_;
  sigset_t before_;
  bool was_pending_;
};

class StreamSink : public Sink {
 public:
  StreamSink(Descriptor stream, bool non_blocking, const std::string& name)
      : stream_(std::move(stream)),
        non_blocking_(non_blocking),
        name_(name),
        label_(quote(name, 4096)) {
    struct stat status;
    if (fstat(stream_.get(), &status) != 0) throw system_error(errno, "cannot examine", name);
    socket_ = S_ISSOCK(status.st_mode);
  }

  bool sequential() const override { return true; }
  void begin(std::uint64_t head_size, std::optional<std::uint64_t>) override {
    head_size_ = head_size;
  }

  void write_head(ConstBytes head, Cancel& cancel) override {
    if (position_ != 0 || head.size() != head_size_) {
      throw Error(ErrorKind::Internal,
                  "the head of the stream " + label_ + " comes late or has another size");
    }
    send({&head, 1}, cancel);
  }

  void write(std::uint64_t offset, std::span<const ConstBytes> pieces, KeptUntil,
             Cancel& cancel) override {
    fill_up_to(head_size_ + offset, cancel);
    send(pieces, cancel);
  }

  void finish(std::uint64_t size, Cancel& cancel) override {
    fill_up_to(head_size_ + size, cancel);
    cancel.check();
    if (const int status = stream_.close(); status != 0) throw_write_error(status, name_);
  }

  void abort() noexcept override { stream_.close(); }
  const std::string& label() const override { return label_; }

 private:
  // Sends zeros for bytes that were not written, as a file would have.
  void fill_up_to(std::uint64_t position, Cancel& cancel) {
    if (position < position_ || position_ < head_size_) {
      throw Error(ErrorKind::Internal, "bytes for the stream " + label_ + " are out of order");
    }
    if (position == position_) return;
    const std::vector<std::byte> zeros(std::min<std::uint64_t>(position - position_, kGapSize));
    while (position_ < position) {
      const ConstBytes gap(zeros.data(),
                           std::min<std::uint64_t>(position - position_, zeros.size()));
      send({&gap, 1}, cancel);
    }
  }

  void send(std::span<const ConstBytes> pieces, Cancel& cancel) {
    if (!stream_) throw Error(ErrorKind::Internal, label_ + " is written after its end");
    IoCursor cursor(pieces);
    const NoSigpipe guard;
    while (cursor.left() > 0) {
      wait_until_ready(stream_.get(), POLLOUT, name_, cancel);
      const ssize_t moved = send_some(cursor);
      const int fault = errno;  // saved, because building the message allocates memory
      if (moved >= 0) {
        cursor.advance(static_cast<std::uint64_t>(moved));
        position_ += static_cast<std::uint64_t>(moved);
      } else if (fault == EPIPE || fault == ECONNRESET) {
        throw Error(
            ErrorKind::Unavailable,
            "the reader of " + label_ + " closed it after " + std::to_string(position_) + " bytes",
            fault, name_);
      } else if (fault != EINTR && fault != EAGAIN) {
        throw_write_error(fault, name_);
      }
    }
  }

  ssize_t send_some(IoCursor& cursor) {
    if (socket_) {
      const std::span<iovec> vectors = cursor.next();
      msghdr message{};
      message.msg_iov = vectors.data();
      message.msg_iovlen = vectors.size();
      return sendmsg(stream_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    // If poll() reports room in a pipe, PIPE_BUF bytes fit, so a blocking descriptor does not
    // block.
    const std::span<iovec> vectors = non_blocking_ ? cursor.next() : cursor.next(PIPE_BUF);
    return writev(stream_.get(), vectors.data(), static_cast<int>(vectors.size()));
  }

  Descriptor stream_;
  const bool non_blocking_;
  bool socket_ = false;
  const std::string name_;
  const std::string label_;
  std::uint64_t head_size_ = 0;
  std::uint64_t position_ = 0;
};

}  // namespace

std::unique_ptr<Sink> stream_sink(Descriptor stream, bool non_blocking, const std::string& name) {
  return std::make_unique<StreamSink>(std::move(stream), non_blocking, name);
}

}  // namespace tensorizer
