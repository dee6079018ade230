// Saves a file to a web server, in one request whose body comes as it is written.
#include <algorithm>
#include <optional>

#include "base/error.h"
#include "io/descriptor.h"
#include "io/http.h"
#include "io/http_client.h"
#include "io/http_tries.h"
#include "io/http_upload.h"

namespace tensorizer {

namespace {

class HttpSink final : public Sink {
 public:
  HttpSink(std::unique_ptr<HttpPlace> place, const HttpOptions& options)
      : client_(std::move(place), options) {}

  bool ascending() const override { return true; }
  void reserve(std::uint64_t size) override { prefix_size_ = size; }

  void announce(std::span<const Section> sections, Cancel&) override {
    body_.total = prefix_size_ + sections.back().offset + sections.back().size;
  }

  void write_prefix(ConstBytes prefix, Cancel& cancel) override { send(0, {&prefix, 1}, cancel); }

  void write(std::span<const Section>, std::uint64_t offset, std::span<const ConstBytes> pieces,
             Cancel& cancel) override {
    send(prefix_size_ + offset, pieces, cancel);
  }

  void finish(std::uint64_t size, Cancel& cancel) override {
    if (prefix_size_ + size != body_.total || body_.given + 1 != body_.total) {
      throw Error(ErrorKind::Internal, label() + " was not written in whole");
    }
    const ConstBytes last(&last_, 1);
    Remaining remaining(std::span<const ConstBytes>(&last, 1));
    body_.may_end = true;
    go_on(remaining, cancel);
    if (connection_->paused()) throw Error(ErrorKind::Internal, label() + " waits for more bytes");
    connection_.reset();
  }

  // A server that has promised to take more bytes than come drops those that came.
  void abort() noexcept override { connection_.reset(); }

  const std::string& label() const override { return client_.label(); }

 private:
  // The file, as its bytes come. Its last byte is held back until all is well: without it there is
  // no file.
  class Body final : public HttpBody {
   public:
    std::uint64_t size() const override { return total; }
    std::optional<std::size_t> give(Bytes out) override {
      const std::uint64_t most = total - given - (may_end ? 0 : 1);
      out = out.first(std::min<std::uint64_t>(out.size(), most));
      std::size_t count = 0;
      while (count < out.size() && source->left() > 0) {
        std::size_t copied = 0;
        for (const iovec piece : source->next(out.size() - count)) {
          std::memcpy(out.data() + count + copied, piece.iov_base, piece.iov_len);
          copied += piece.iov_len;
        }
        source->advance(copied);
        count += copied;
      }
      given += count;
      if (count == 0 && given < total) return std::nullopt;
      return count;
    }
    bool rewind() override { return given == 0; }

    std::uint64_t total = 0;
    std::uint64_t given = 0;
    bool may_end = false;
    Remaining* source = nullptr;
  };

  void send(std::uint64_t offset, std::span<const ConstBytes> pieces, Cancel& cancel) {
    if (offset != body_.given || body_.given + total_size_of(pieces) > body_.total) {
      throw Error(ErrorKind::Internal, "bytes for " + label() + " come in another order");
    }
    Remaining remaining(pieces);
    while (remaining.left() > 0) {
      if (body_.given + 1 == body_.total) {
        last_ = pieces.back().back();
        return;
      }
      go_on(remaining, cancel);
    }
  }

  // Sends what there is, and takes the server's word when it says one.
  void go_on(Remaining& remaining, Cancel& cancel) {
    body_.source = &remaining;
    HttpOutcome outcome;
    if (connection_) {
      outcome = connection_->go_on(cancel);
    } else {
      connection_ = client_.take();
      HttpRequest request;
      request.method = "PUT";
      request.body = &body_;
      outcome = tries_.ask(*connection_, request, receiver_, cancel);
    }
    body_.source = nullptr;
    if (connection_->paused()) return;
    const int status = outcome.answer.status;
    const bool done = body_.given == body_.total && status >= 200 && status < 300;
    if (outcome.failure || !done) tries_.failed(outcome, 0, cancel);
  }

  static std::uint64_t total_size_of(std::span<const ConstBytes> pieces) {
    std::uint64_t size = 0;
    for (const ConstBytes piece : pieces) size += piece.size();
    return size;
  }

  HttpClient client_;
  // What has been sent is gone, so nothing is tried again.
  HttpTries tries_{client_, "save", 0};
  TextReceiver receiver_;
  Body body_;
  std::unique_ptr<HttpConnection> connection_;
  std::uint64_t prefix_size_ = 0;
  std::byte last_{};
};

}  // namespace

std::unique_ptr<Sink> http_sink(std::unique_ptr<HttpPlace> place, const HttpOptions& options) {
  return std::make_unique<HttpSink>(std::move(place), options);
}

}  // namespace tensorizer
