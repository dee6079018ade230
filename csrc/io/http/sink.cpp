// Saves a file to a web server by one PUT, whose body is streamed as it is written.
#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/error.h"
#include "io/descriptor.h"
#include "io/http/client.h"
#include "io/http/open.h"
#include "io/http/retry.h"
#include "io/http/upload.h"

namespace tensorizer {

namespace {

// The first bytes of the file that are kept to be sent again after a redirect: more than the
// kernels of both ends take (4 and 6 MiB by default) while the server is busy with the head of the
// request.
constexpr std::size_t kKept = 16 << 20;

class HttpSink final : public Sink {
 public:
  explicit HttpSink(HttpAccess access) : client_(std::move(access)) {}

  bool sequential() const override { return true; }

  void begin(std::uint64_t head_size, std::optional<std::uint64_t> body_size) override {
    if (!body_size) {
      throw Error(ErrorKind::InvalidArgument,
                  label() +
                      " is saved in one request, which needs the size of the file first: use "
                      "save(), or write to a local file first");
    }
    head_size_ = head_size;
    body_.total = head_size + *body_size;
  }

  void write_head(ConstBytes head, Cancel& cancel) override { send(0, {&head, 1}, cancel); }

  void write(std::uint64_t offset, std::span<const ConstBytes> pieces, KeptUntil,
             Cancel& cancel) override {
    send(head_size_ + offset, pieces, cancel);
  }

  void finish(std::uint64_t size, Cancel& cancel) override {
    const std::size_t held = body_.total > 0 ? 1 : 0;
    if (head_size_ + size != body_.total || body_.taken + held != body_.total) {
      throw Error(ErrorKind::Internal, label() + " was not written in whole");
    }
    const ConstBytes last(&last_, held);
    IoCursor cursor(std::span<const ConstBytes>(&last, 1));
    body_.may_end = true;
    go_on(cursor, cancel);
    if (connection_->paused()) throw Error(ErrorKind::Internal, label() + " waits for more bytes");
    connection_.reset();
  }

  // The server drops the file, because it got fewer bytes than the Content-Length.
  void abort() noexcept override { connection_.reset(); }

  const std::string& label() const override { return client_.label(); }

 private:
  // The body of the PUT. Its last byte is held back until finish(): without it the server stores no
  // file. The first bytes are kept: a server may receive them before it redirects the request.
  class Body final : public HttpBody {
   public:
    std::uint64_t size() const override { return total; }
    std::optional<std::size_t> give(Bytes out) override {
      const std::uint64_t most = total - given_ - (may_end ? 0 : 1);
      out = out.first(std::min<std::uint64_t>(out.size(), most));
      std::size_t count = 0;
      while (count < out.size()) {
        const ConstBytes piece = next(out.size() - count);
        if (piece.empty()) break;
        std::memcpy(out.data() + count, piece.data(), piece.size());
        given_ += piece.size();
        count += piece.size();
      }
      if (count == 0 && given_ < total) return std::nullopt;
      return count;
    }
    bool rewind() override {
      if (taken > first_.size()) return false;
      given_ = 0;
      return true;
    }
    bool complete() const { return given_ == total; }

    std::uint64_t total = 0;
    std::uint64_t taken = 0;  // bytes of the caller's that were consumed
    bool may_end = false;
    IoCursor* source = nullptr;

   private:
    ConstBytes next(std::size_t most) {
      if (given_ < taken) {
        const ConstBytes again = ConstBytes(first_).subspan(given_);
        return again.first(std::min(again.size(), most));
      }
      if (source->left() == 0) return {};
      const iovec piece = source->next(most).front();
      const ConstBytes bytes(static_cast<const std::byte*>(piece.iov_base), piece.iov_len);
      if (taken == first_.size()) {
        const std::size_t kept = std::min(bytes.size(), kKept - first_.size());
        first_.insert(first_.end(), bytes.begin(), bytes.begin() + kept);
      }
      source->advance(bytes.size());
      taken += bytes.size();
      return bytes;
    }

    std::vector<std::byte> first_;
    std::uint64_t given_ = 0;
  };

  void send(std::uint64_t offset, std::span<const ConstBytes> pieces, Cancel& cancel) {
    if (offset != body_.taken || body_.taken + total_size(pieces) > body_.total) {
      throw Error(ErrorKind::Internal, "bytes for " + label() + " are out of order");
    }
    IoCursor cursor(pieces);
    while (cursor.left() > 0) {
      if (body_.taken + 1 == body_.total) {
        last_ = pieces.back().back();
        return;
      }
      go_on(cursor, cancel);
    }
  }

  // Sends the bytes of `cursor` that the connection takes. Throws if the server has responded
  // before the whole body was sent, or with a failure.
  void go_on(IoCursor& cursor, Cancel& cancel) {
    body_.source = &cursor;
    HttpOutcome outcome;
    if (connection_) {
      outcome = tries_->go_on(*connection_, cancel);
    } else {
      connection_ = client_.take();
      // No retries: of the bytes that have been sent, only the first ones are kept.
      tries_.emplace(client_, "save", 0, client_.options().timeout);
      HttpRequest request;
      request.method = "PUT";
      request.body = &body_;
      outcome = tries_->ask(*connection_, request, receiver_, cancel);
    }
    body_.source = nullptr;
    if (connection_->paused()) return;
    const int status = outcome.answer.status;
    if (outcome.failure || status < 200 || status > 299) tries_->failed(outcome, 0, cancel);
    if (!body_.complete()) {
      client_.throw_wrong("answers with status " + std::to_string(status) +
                          " before it has received the whole file");
    }
    // Apache's response to a PUT is a page as well, with status 201.
    if (status == 200 && is_page(receiver_.text)) {
      client_.throw_wrong(
          "answers with status 200 and an HTML page, as proxies and login pages do: the file is "
          "probably not there");
    }
  }

  HttpClient client_;
  std::optional<HttpTries> tries_;  // since the first bytes went out
  TextReceiver receiver_;
  Body body_;
  std::unique_ptr<HttpConnection> connection_;
  std::uint64_t head_size_ = 0;
  std::byte last_{};
};

}  // namespace

std::unique_ptr<Sink> http_sink(HttpAccess access) {
  return std::make_unique<HttpSink>(std::move(access));
}

}  // namespace tensorizer
