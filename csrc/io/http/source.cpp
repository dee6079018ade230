// A file on a web server. It is read by range requests, or in order if the server does not support
// ranges.
#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "io/descriptor.h"
#include "io/http/client.h"
#include "io/http/open.h"
#include "io/http/retry.h"
#include "io/secret.h"
#include "io/skip.h"
#include "io/url.h"

namespace tensorizer {

namespace {

// The size of the first request: usually enough for the index and the first tensors.
constexpr std::uint64_t kFirstRequest = 1 << 20;
// The bytes that a connection could bring while a request waits for its response: the wait so far,
// at a usual speed of one connection, within bounds for servers on this machine and for slow ones.
constexpr double kBytesPerSecond = 100e6;
constexpr double kSmallestReadCost = 64 << 10;
constexpr double kLargestReadCost = 2 << 20;

using HeaderList = std::vector<std::pair<std::string, std::string>>;

class HttpSource final : public Source {
 public:
  HttpSource(HttpAccess access, const SourceOptions& options, Cancel& cancel)
      : client_(std::move(access)), begin_(options.begin) {
    open(options.end, cancel);
  }

  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override {
    const std::uint64_t wanted = total_size(pieces);
    IoCursor cursor(pieces);
    const std::uint64_t done = fill_from(offset, cursor, cancel);
    if (done < wanted) throw_source_ended(label(), offset + done, wanted - done);
  }

  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    IoCursor cursor(std::span<const Bytes>(&out, 1));
    return fill_from(offset, cursor, cancel);
  }

  bool read_anew(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    if (sequential_) return false;
    IoCursor cursor(std::span<const Bytes>(&out, 1));
    fetch(offset, offset + out.size(), cursor, cancel, Caches::Passed);
    return true;
  }

  std::optional<std::uint64_t> size() const override { return object_.size; }
  std::optional<std::string> version() const override {
    if (object_.etag.empty() && object_.last_modified.empty()) return std::nullopt;
    return object_.etag + " " + object_.last_modified + " " +
           std::to_string(object_.size.value_or(0));
  }
  bool is_exact_version() const override { return validated_; }
  std::optional<WholeDigest> digest() override { return client_.endpoint().digest(); }
  bool sequential() const override { return sequential_ != nullptr; }
  bool remote() const override { return !sequential(); }
  ReadHints hints(std::uint64_t, std::uint64_t) override {
    ReadHints hints;
    hints.reads_in_flight = hints.most_reads = client_.options().connections;
    hints.read_size = client_.options().chunk_size;
    const SourceStats stats = client_.stats();
    const double wait =
        stats.first_byte / static_cast<double>(std::max<std::uint64_t>(stats.requests, 1));
    hints.read_cost = static_cast<std::uint64_t>(
        std::clamp(wait * kBytesPerSecond, kSmallestReadCost, kLargestReadCost));
    return hints;
  }
  // Reads the first bytes again if the responses so far could be of several files.
  void confirm(Cancel& cancel) override {
    const std::uint64_t fetches = fetches_;
    if (validated_ || fetches == confirmed_) return;
    std::vector<std::byte> again(stream_.held.size());
    const Bytes piece(again);
    IoCursor cursor(std::span<const Bytes>(&piece, 1));
    const HttpAnswer answer = fetch(begin_, begin_ + again.size(), cursor, cancel);
    if (again != stream_.held) throw_changed();
    confirmed_ = fetches + 1;
    if (answer.has_strong_validator()) validated_ = true;
  }
  SourceStats stats() const override { return client_.stats(); }
  HeaderList headers() const override { return headers_; }
  const std::string& label() const override { return client_.label(); }
  void redact(Redaction& text) const override { client_.redact(text); }

 private:
  // Whether a cache between the server and this process may answer.
  enum class Caches { Used, Passed };

  // Receives the response to the first request, for the file from `begin` on, and keeps its bytes.
  // If the server does not support ranges, the response has the whole file: the rest comes in
  // order, into `target`.
  class Stream final : public HttpReceiver {
   public:
    explicit Stream(std::uint64_t begin) : begin_(begin) {}

    bool head(const HttpAnswer& answer) override { return is_good(answer); }
    bool body(ConstBytes bytes) override {
      if (has_enough()) return false;
      if (target != nullptr) bytes = bytes.subspan(target->fill(bytes));
      held.insert(held.end(), bytes.begin(), bytes.end());
      return true;
    }
    bool has_enough() const override {
      return target != nullptr ? target->left() == 0 : held.size() >= kFirstRequest;
    }
    bool is_good(const HttpAnswer& answer) const {
      const bool range = answer.status == 206 && answer.begin == begin_ && answer.end;
      return !answer.encoded && (answer.status == 200 || range);
    }

    std::vector<std::byte> held;  // the bytes that went to no target
    IoCursor* target = nullptr;

   private:
    std::uint64_t begin_;
  };

  // Receives a range of the file.
  class Range final : public HttpReceiver {
   public:
    Range(const HttpSource& source, std::uint64_t begin, std::uint64_t end, IoCursor& cursor)
        : source_(source), begin_(begin), end_(end), cursor_(cursor) {}

    bool head(const HttpAnswer& answer) override {
      // 412: the ETag has changed. 416: the file is shorter now.
      if (answer.status == 412 || answer.status == 416) source_.throw_changed();
      if (answer.status == 200) source_.client_.throw_wrong("does not support ranges any more");
      if (answer.status != 206) return false;
      source_.check_same(answer.object);
      if (answer.encoded) source_.client_.throw_wrong("sends the file encoded");
      if (answer.begin != begin_ || answer.end != end_) {
        source_.client_.throw_wrong("sends a different range than was requested");
      }
      return true;
    }
    bool body(ConstBytes bytes) override {
      if (bytes.size() > end_ - begin_ - brought) {
        source_.client_.throw_wrong("sends more than was requested");
      }
      cursor_.fill(bytes);
      brought += bytes.size();
      return true;
    }

    std::uint64_t brought = 0;

   private:
    const HttpSource& source_;
    const std::uint64_t begin_;
    const std::uint64_t end_;
    IoCursor& cursor_;
  };

  [[noreturn]] void throw_changed() const {
    throw Error(ErrorKind::Unavailable, label() + " has changed while it was loaded");
  }

  void check_same(const HttpIdentity& object) const {
    // Servers behind one address may give an object the same strong ETag and different dates.
    const bool same = object.etag == object_.etag &&
                      (object_.has_strong_etag() || object.last_modified == object_.last_modified);
    // A range may come without the size ("bytes 0-9/*").
    if (!same || (object.size && object.size != object_.size)) throw_changed();
  }

  void open(std::uint64_t last, Cancel& cancel) {
    std::unique_ptr<HttpConnection> connection = client_.take();
    HttpTries tries(client_, "load");
    HttpAnswer answer;
    bool whole = false;  // without a range
    for (;;) {
      const std::uint64_t end = begin_ + std::min(last - begin_, kFirstRequest);
      HttpRequest request;
      if (!whole) request.ask_for_range(begin_, end);
      stream_ = Stream(begin_);
      const HttpOutcome outcome = tries.ask(*connection, request, stream_, cancel);
      answer = outcome.answer;
      if (!outcome.failure) {
        if (answer.status == 416 && !whole) {
          // An empty file has no first byte.
          if (begin_ == 0 && answer.object.size == 0) break;
          // A request from byte 0 tells the size of a file that ends before begin_. If the server
          // refuses that as well, and does not say that the file is empty, it is asked for all.
          whole = begin_ == 0;
          begin_ = 0;
          continue;
        }
        const bool file = answer.status == 200 || answer.status == 206;
        if (file && answer.encoded) client_.throw_wrong("sends the file encoded");
        if (file && !stream_.is_good(answer)) {
          client_.throw_wrong("sends a different range than was requested");
        }
        if (answer.status == 206 && !answer.object.size && !whole) {
          // The response to a request for all has the size in its Content-Length.
          whole = true;
          begin_ = 0;
          continue;
        }
        const std::uint64_t there = std::min(end, answer.object.size.value_or(begin_));
        const bool cut = answer.status == 206 && begin_ + stream_.held.size() < there;
        if (file && !cut) break;
      }
      // The next try starts again, so the bytes received are no progress.
      tries.failed(outcome, 0, cancel);
    }
    object_ = answer.object;
    validated_ = answer.has_strong_validator();
    headers_ = of_whole_file(std::move(answer.headers));
    if (answer.status == 200) begin_ = 0;
    if (answer.status == 200 && connection->paused()) {
      sequential_ = std::move(connection);
      return;
    }
    if (answer.status != 206) object_.size = stream_.held.size();
    if (!object_.size) client_.throw_wrong("does not tell the size of the file");
    if (stream_.held.size() > *object_.size) client_.throw_wrong("sends more than was requested");
    client_.give_back(std::move(connection));
  }

  // Returns the headers of a response as those of one with the whole file.
  HeaderList of_whole_file(HeaderList headers) const {
    std::erase_if(headers, [](const auto& header) { return header.first == "content-range"; });
    for (auto& [name, value] : headers) {
      if (name == "content-length" && object_.size) value = std::to_string(*object_.size);
    }
    return headers;
  }

  // Fills as much as the file has, and returns the number of bytes.
  std::uint64_t fill_from(std::uint64_t offset, IoCursor& cursor, Cancel& cancel) {
    const std::uint64_t wanted = cursor.left();
    if (sequential_) {
      fill_in_order(offset, cursor, cancel);
      return wanted - cursor.left();
    }
    const ConstBytes first(stream_.held);
    if (offset >= begin_ && offset - begin_ < first.size()) {
      offset += cursor.fill(first.subspan(offset - begin_));
    }
    if (cursor.left() > 0 && offset < *object_.size) {
      fetch(offset, std::min(offset + cursor.left(), *object_.size), cursor, cancel);
    }
    return wanted - cursor.left();
  }

  // Fetches the bytes from `offset` to `end`, and resumes interrupted downloads at the byte where
  // they stopped. Returns the last response.
  HttpAnswer fetch(std::uint64_t offset, std::uint64_t end, IoCursor& cursor, Cancel& cancel,
                   Caches caches = Caches::Used) {
    std::unique_ptr<HttpConnection> connection = client_.take();
    HttpTries tries(client_, "load");
    HttpAnswer answer;
    while (offset < end) {
      Range range(*this, offset, end, cursor);
      HttpRequest request;
      request.ask_for_range(offset, end);
      if (caches == Caches::Passed) request.headers.push_back("Cache-Control: no-cache");
      if (object_.has_strong_etag()) request.headers.push_back("If-Match: " + object_.etag);
      HttpOutcome outcome = tries.ask(*connection, request, range, cancel);
      offset += range.brought;
      if (offset < end) tries.failed(outcome, range.brought, cancel);
      answer = std::move(outcome.answer);
    }
    client_.give_back(std::move(connection));
    ++fetches_;
    return answer;
  }

  void fill_in_order(std::uint64_t offset, IoCursor& cursor, Cancel& cancel) {
    const bool there = skip_to(offset, position_, label(), [&](Bytes out) {
      IoCursor skipping(std::span<const Bytes>(&out, 1));
      take_in_order(skipping, cancel);
      return out.size() - skipping.left();
    });
    if (!there) return;
    take_in_order(cursor, cancel);
  }

  void take_in_order(IoCursor& cursor, Cancel& cancel) {
    std::vector<std::byte>& held = stream_.held;
    const std::size_t taken = cursor.fill(ConstBytes(held).subspan(held_taken_));
    held_taken_ += taken;
    position_ += taken;
    if (cursor.left() == 0 || !sequential_->paused()) return;
    held.clear();
    held_taken_ = 0;
    const std::uint64_t wanted = cursor.left();
    stream_.target = &cursor;
    HttpTries tries(client_, "load");
    const std::optional<ConnectionFailure> failure = tries.go_on(*sequential_, cancel).failure;
    stream_.target = nullptr;
    position_ += wanted - cursor.left();
    if (failure) {
      const RedactedQuotes quotes(client_);
      throw Error(failure->timed_out ? ErrorKind::TimedOut : ErrorKind::Unavailable,
                  "cannot load " + label() + " after byte " + std::to_string(position_) + ": " +
                      quote(failure->what) +
                      "; its server does not support ranges, so the load cannot be resumed");
    }
  }

  HttpClient client_;
  HttpIdentity object_;
  HeaderList headers_;   // of the first response
  std::uint64_t begin_;  // of the bytes in stream_
  Stream stream_{begin_};
  // Whether the headers of its responses show that the file has changed.
  std::atomic<bool> validated_ = false;
  // The number of fetches so far, and of those that confirm() has found to be of one file.
  std::atomic<std::uint64_t> fetches_ = 0;
  std::atomic<std::uint64_t> confirmed_ = 0;

  // Used if the server does not support ranges; otherwise null.
  std::unique_ptr<HttpConnection> sequential_;
  std::uint64_t position_ = 0;
  std::size_t held_taken_ = 0;
};

}  // namespace

std::unique_ptr<Source> http_source(HttpAccess access, const SourceOptions& options,
                                    Cancel& cancel) {
  return std::make_unique<HttpSource>(std::move(access), options, cancel);
}

}  // namespace tensorizer
