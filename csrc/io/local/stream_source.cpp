#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/local/open.h"
#include "io/skip.h"

namespace tensorizer {

namespace {

class StreamSource : public Source {
 public:
  StreamSource(Descriptor stream, const std::string& name)
      : stream_(std::move(stream)), name_(name), label_(quote(name, 4096)) {}

  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override {
    const std::uint64_t wanted = total_size(pieces);
    const std::uint64_t done = go_to(offset, cancel) ? fill(pieces, cancel) : 0;
    if (done < wanted) throw_source_ended(label_, position_, offset + wanted - position_);
  }

  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    return go_to(offset, cancel) ? fill({&out, 1}, cancel) : 0;
  }

  std::optional<std::uint64_t> size() const override { return std::nullopt; }
  bool sequential() const override { return true; }
  const std::string& label() const override { return label_; }

 private:
  // Skips to `offset`. Returns false if the stream ends before it.
  bool go_to(std::uint64_t offset, Cancel& cancel) {
    return skip_to(offset, position_, label_, [&](Bytes out) { return fill({&out, 1}, cancel); });
  }

  // Reads until the pieces are full or the stream ends. Returns the number of bytes read.
  std::uint64_t fill(std::span<const Bytes> pieces, Cancel& cancel) {
    IoCursor cursor(pieces);
    std::uint64_t done = 0;
    while (cursor.left() > 0) {
      // Needed before every read: a read from a FIFO that has no writer yet would report its end.
      wait_until_ready(stream_.get(), POLLIN, name_, cancel);
      const std::span<iovec> vectors = cursor.next();
      const ssize_t moved = readv(stream_.get(), vectors.data(), static_cast<int>(vectors.size()));
      if (moved < 0) {
        if (errno == EINTR || errno == EAGAIN) continue;
        if (errno == ECONNRESET) {
          throw Error(ErrorKind::Unavailable,
                      "the other side closed " + label_ + " at byte " + std::to_string(position_),
                      errno, name_);
        }
        throw system_error(errno, "cannot read", name_);
      }
      if (moved == 0) break;
      cursor.advance(static_cast<std::uint64_t>(moved));
      done += static_cast<std::uint64_t>(moved);
      position_ += static_cast<std::uint64_t>(moved);
    }
    return done;
  }

  const Descriptor stream_;
  const std::string name_;
  const std::string label_;
  std::uint64_t position_ = 0;
};

}  // namespace

std::unique_ptr<Source> stream_source(Descriptor stream, const std::string& name) {
  return std::make_unique<StreamSource>(std::move(stream), name);
}

}  // namespace tensorizer
