#include "io/s3/sink.h"

// Saves an object. Its parts are sent as they fill, and the object appears when all are stored.
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "base/number.h"
#include "codec/crc32.h"
#include "codec/hmac.h"
#include "io/aws/sign.h"
#include "io/aws/xml.h"
#include "io/http/client.h"
#include "io/http/retry.h"
#include "io/http/upload.h"
#include "io/s3/parts.h"
#include "io/s3/receipt.h"
#include "io/s3/upload_queue.h"

namespace tensorizer {

namespace {

// S3's own limits.
constexpr std::uint64_t kMostParts = 10000;
constexpr std::uint64_t kLargestPart = std::uint64_t{5} << 30;
// Used if the size is known beforehand.
constexpr std::uint64_t kSmallestPart = 8 << 20;
// How many parts may run ahead of the first missing one.
constexpr std::uint64_t kAhead = 20;
// How many parts of copied bytes may wait in the queue.
constexpr std::uint64_t kCopies = 4;
// Servers may take minutes to assemble an object of many parts.
constexpr double kPatience = 600;
// The limit in seconds on removing an aborted upload: the caller waits for it.
constexpr double kRemoval = 2;
constexpr int kMostRemovals = 3;

// A server may send status 200 early, to keep the connection, and report an error in the body.
class ReplyReceiver final : public TextReceiver {
 public:
  void ended(HttpAnswer& answer) override {
    if (answer.status != 200 || xml_root(text) != "Error") return;
    answer.status = 500;
    answer.refusal = text;
  }
};

class S3Sink final : public SharedSink {
 public:
  S3Sink(std::unique_ptr<HttpEndpoint> endpoint, std::shared_ptr<HttpPool> pool,
         std::uint64_t part_size)
      : client_(std::move(endpoint), std::move(pool)), part_size_(part_size) {}
  // Makes a sink that several processes write.
  S3Sink(std::unique_ptr<HttpEndpoint> endpoint, std::shared_ptr<HttpPool> pool,
         std::optional<std::string> joined)
      : client_(std::move(endpoint), std::move(pool)),
        shared_(true),
        upload_id_(std::move(joined).value_or("")) {}
  ~S3Sink() override { abort(); }

  bool sequential() const override { return false; }
  std::uint64_t usual_head_size() const override { return kUsualHead; }

  void begin(std::uint64_t head_size, std::optional<std::uint64_t> body_size) override {
    head_size_ = head_size;
    if (!body_size) return;
    const std::uint64_t total = head_size + *body_size;
    part_size_ = std::max(kSmallestPart, (total + kMostParts - 1) / kMostParts);
    if (part_size_ > kLargestPart) {
      throw Error(ErrorKind::InvalidArgument, label() + " would have " + std::to_string(total) +
                                                  " bytes, more than an object in S3 may have");
    }
    total_ = total;
  }

  // Possible as long as the whole file fits into one part: parts that were sent cannot be moved.
  bool can_resize_head(std::uint64_t size, std::uint64_t more) const override {
    const std::lock_guard lock(mutex_);
    return !queue_ && size + (parts_ ? parts_->held() : 0) + more <= part_size_;
  }

  void write_head(ConstBytes head, Cancel& cancel) override {
    if (head.size() != head_size_ && !can_resize_head(head.size(), 0)) {
      throw Error(ErrorKind::Internal,
                  "the head of " + label() + " has another size than reserved");
    }
    take(0, {&head, 1}, KeptUntil::Return, cancel);
    head_size_ = head.size();
  }

  void write(std::uint64_t offset, std::span<const ConstBytes> pieces, KeptUntil kept,
             Cancel& cancel) override {
    take(head_size_ + offset, pieces, kept, cancel);
  }

  // Sends all parts, so that neither their memory nor threads are needed any more. The connections
  // serve the other files of the save.
  void prepare(std::uint64_t size, Cancel& cancel) override {
    send(rest_of(size), cancel);
    {
      const std::lock_guard lock(mutex_);
      queue_.reset();
    }
    prepared_ = true;
  }

  void finish(std::uint64_t size, Cancel& cancel) override {
    if (!prepared_) {
      std::vector<UploadPart> rest = rest_of(size);
      if (!queue_ && rest.size() == 1) {
        put(rest.front(), {}, cancel);
        return;
      }
      send(std::move(rest), cancel);
    }
    must_be_whole(head_size_ + size);
    complete(head_size_ + size, cancel);
    upload_id_.clear();
  }

  std::uint64_t unit() const override { return part_size_; }

  // A file of one part is written by one process, in one request.
  std::string share(Cancel& cancel) override {
    return total_ && *total_ <= part_size_ ? std::string() : upload_name(cancel);
  }

  std::string hand_in(std::uint64_t size, Cancel& cancel) override {
    if (total_ && *total_ <= part_size_) return {};
    prepare(size, cancel);
    std::string text;
    for (const auto& [number, part] : stored_) {
      text += std::to_string(number) + ' ' + std::to_string(part.crc32) + ' ' + part.etag + '\n';
    }
    return text;
  }

  void take_in(std::string_view handed_in) override {
    while (!handed_in.empty()) {
      const std::string_view line = handed_in.substr(0, handed_in.find('\n'));
      handed_in.remove_prefix(std::min(line.size() + 1, handed_in.size()));
      const std::size_t first = line.find(' ');
      const std::size_t second = line.find(' ', first + 1);
      const auto number = parse_number(line.substr(0, first));
      const auto crc32 = parse_number(line.substr(first + 1, second - first - 1));
      if (!number || !crc32 || second == std::string_view::npos) {
        throw Error(ErrorKind::Internal, "another process has handed in no parts of " + label());
      }
      stored_[*number] = {std::string(line.substr(second + 1)), static_cast<std::uint32_t>(*crc32)};
    }
  }

  void leave() noexcept override {
    upload_id_.clear();
    abort();
  }

  void abort() noexcept override {
    queue_.reset();
    if (upload_id_.empty()) return;
    try {
      Cancel cancel{Cancel::Unattended{}};
      HttpRequest request;
      request.method = "DELETE";
      request.query = {{"uploadId", std::exchange(upload_id_, {})}};
      HttpTries tries(client_, "save", 1, kRemoval);
      // Repeated until the server does not know the upload any more, which throws: a part that was
      // being sent may be stored after the first removal.
      for (int removals = 0; removals < kMostRemovals; ++removals) ask(request, {}, tries, cancel);
    } catch (...) {
      // Ignored: abort() cannot report it. The bucket's lifecycle rules remove what is left.
    }
  }

  const std::string& label() const override { return client_.label(); }

 private:
  // More than the default, because parts that were sent cannot be moved.
  static constexpr std::uint64_t kUsualHead = 1 << 20;

  // Returns the parts that have not been sent yet.
  std::vector<UploadPart> rest_of(std::uint64_t size) {
    std::vector<UploadPart> rest = parts().finish(head_size_ + size);
    if (only_) rest.push_back(std::move(*only_));
    only_.reset();
    if (head_size_ + size == 0) rest.emplace_back(0);
    return rest;
  }

  void send(std::vector<UploadPart> rest, Cancel& cancel) {
    for (UploadPart& part : rest) queue().add(std::move(part), cancel);
    queue().finish(cancel);
  }

  UploadParts& parts() {
    const std::lock_guard lock(mutex_);
    if (!parts_) parts_.emplace(part_size_, total_);
    return *parts_;
  }

  UploadQueue& queue() {
    const std::lock_guard lock(mutex_);
    if (!queue_) {
      UploadLimits limits;
      limits.at_once = client_.options().connections;
      if (total_ && !shared_) limits.ahead = kAhead;
      limits.copied = kCopies * part_size_;
      queue_ = std::make_unique<UploadQueue>(
          limits, [this](const UploadPart& part, Cancel& cancel) { upload(part, cancel); });
    }
    return *queue_;
  }

  void take(std::uint64_t offset, std::span<const ConstBytes> pieces, KeptUntil kept,
            Cancel& cancel) {
    for (UploadPart& part : parts().add(offset, pieces, kept == KeptUntil::End)) {
      if (part.number >= kMostParts) {
        throw Error(ErrorKind::InvalidArgument,
                    label() + " would have more than " + std::to_string(kMostParts) + " parts of " +
                        std::to_string(part_size_) + " bytes: set option 'part_size'");
      }
      if (total_ && *total_ <= part_size_) {
        only_ = std::move(part);  // sent by finish(), in one request
      } else {
        queue().add(std::move(part), cancel);
      }
    }
  }

  void upload(const UploadPart& part, Cancel& cancel) {
    StoredPart stored = put(
        part, {{"partNumber", std::to_string(part.number + 1)}, {"uploadId", upload_name(cancel)}},
        cancel);
    const std::lock_guard lock(mutex_);
    stored_[part.number + 1] = std::move(stored);
  }

  // Returns the identifier of the upload. The first call starts the upload.
  std::string upload_name(Cancel& cancel) {
    const std::lock_guard lock(start_mutex_);
    if (!upload_id_.empty()) return upload_id_;
    HttpRequest request;
    request.method = "POST";
    request.query = {{"uploads", ""}};
    request.headers = {"Content-Type: application/octet-stream", "x-amz-checksum-algorithm: CRC32"};
    const std::string answer = ask(request, "InitiateMultipartUpload", cancel).text;
    upload_id_ = xml_text(answer, "UploadId").value_or("");
    if (upload_id_.empty()) throw_wrong("did not start an upload");
    return upload_id_;
  }

  // Sends a part, or the whole object.
  StoredPart put(const UploadPart& part, NamedTexts query, Cancel& cancel) {
    StoredPart stored;
    for (const ConstBytes piece : part.pieces) stored.crc32 = crc32(stored.crc32, piece);
    const std::string checksum = to_base64(crc32_bytes(stored.crc32));
    HttpRequest request;
    request.method = "PUT";
    request.query = std::move(query);
    // Without "Expect: 100-continue", which would cost each part a round trip.
    request.headers = {"x-amz-checksum-crc32: " + checksum, "Expect:"};
    if (request.query.empty()) request.headers.push_back("Content-Type: application/octet-stream");
    MemoryBody body(part.pieces);
    request.body = &body;
    const HttpAnswer answer = ask(request, "", cancel).answer;
    const std::string_view theirs = answer.header("x-amz-checksum-crc32");
    if (!theirs.empty() && theirs != checksum) throw_wrong("has stored different bytes");
    stored.etag = answer.header("etag");
    return stored;
  }

  // A server would make an object of the parts that it is told of.
  void must_be_whole(std::uint64_t size) const {
    const std::uint64_t parts = (size + part_size_ - 1) / part_size_;
    if (stored_.size() == parts && stored_.rbegin()->first == parts) return;
    throw Error(ErrorKind::Internal, label() + " lacks parts that nobody has handed in");
  }

  void complete(std::uint64_t size, Cancel& cancel) {
    const std::string text = completion_of(stored_);
    HttpRequest request;
    request.method = "POST";
    request.query = {{"uploadId", upload_id_}};
    request.headers = {"Content-Type: application/xml", "Expect:"};
    const double timeout = client_.options().timeout;
    request.patience = timeout > 0 ? std::min(kPatience, timeout) : kPatience;
    const ConstBytes bytes = as_bytes(text);
    MemoryBody body({&bytes, 1});
    request.body = &body;
    // The upload may be complete although the response says otherwise: the response to the first
    // request may be lost, or a proxy's. libcurl also repeats a request by itself if a connection
    // breaks that it has reused.
    const auto is_done = [&](const HttpOutcome& outcome) {
      const int status = outcome.answer.status;
      return (outcome.failure || status == 404 || status >= 500) && is_stored(size, cancel);
    };
    try {
      HttpTries tries(client_, "save");
      ask(request, kCompletion, tries, cancel, is_done);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::NotFound) throw;
      throw_wrong(
          "does not know the upload any more: it was aborted, or completed by a request whose "
          "response was lost");
    }
  }

  // Returns true if the object exists and consists of the parts of this upload.
  bool is_stored(std::uint64_t size, Cancel& cancel) {
    HttpRequest request;
    request.method = "HEAD";
    request.headers = {"x-amz-checksum-mode: ENABLED"};
    TextReceiver receiver;
    HttpTries tries(client_, "save", 0, client_.options().timeout);
    const HttpOutcome outcome = tries.ask(*client_.take(), request, receiver, cancel);
    return !outcome.failure && consists_of(outcome.answer, size, stored_);
  }

  struct Reply {
    HttpAnswer answer;
    std::string text;
  };

  // Sends a request until the response is one of S3's. `root`: for fault_of_answer(); null if any
  // successful status will do. After a failed try, `is_done` says whether it had its effect anyway.
  Reply ask(HttpRequest& request, std::string_view root, Cancel& cancel) {
    HttpTries tries(client_, "save");
    return ask(request, root, tries, cancel);
  }
  Reply ask(HttpRequest& request, std::optional<std::string_view> root, HttpTries& tries,
            Cancel& cancel, const std::function<bool(const HttpOutcome&)>& is_done = {}) {
    std::unique_ptr<HttpConnection> connection = client_.take();
    for (;;) {
      ReplyReceiver receiver;
      if (request.body != nullptr) request.body->rewind();
      HttpOutcome outcome = tries.ask(*connection, request, receiver, cancel);
      if (!outcome.failure && outcome.answer.status >= 200 && outcome.answer.status < 300) {
        const std::string fault =
            root ? fault_of_answer(outcome.answer, receiver.text, *root) : std::string();
        if (fault.empty()) {
          client_.give_back(std::move(connection));
          return {outcome.answer, std::move(receiver.text)};
        }
        outcome.failure = ConnectionFailure{.what = fault, .temporary = true};
      }
      if (is_done && is_done(outcome)) return {};
      tries.failed(outcome, 0, cancel);
    }
  }

  [[noreturn]] void throw_wrong(const std::string& what) const {
    throw Error(ErrorKind::Unavailable, "the server of " + label() + " " + what);
  }

  HttpClient client_;
  const bool shared_ = false;
  std::uint64_t part_size_ = 0;
  std::uint64_t head_size_ = 0;
  std::optional<std::uint64_t> total_;
  bool prepared_ = false;

  std::mutex start_mutex_;
  std::string upload_id_;

  mutable std::mutex mutex_;  // guards what follows
  std::optional<UploadParts> parts_;
  std::map<std::uint64_t, StoredPart> stored_;
  std::optional<UploadPart> only_;
  std::unique_ptr<UploadQueue> queue_;  // last, so that it is destroyed first: it uses the others
};

}  // namespace

std::unique_ptr<Sink> s3_sink(std::unique_ptr<HttpEndpoint> endpoint,
                              std::shared_ptr<HttpPool> pool, std::uint64_t part_size) {
  return std::make_unique<S3Sink>(std::move(endpoint), std::move(pool), part_size);
}

std::unique_ptr<SharedSink> shared_s3_sink(std::unique_ptr<HttpEndpoint> endpoint,
                                           std::shared_ptr<HttpPool> pool,
                                           const std::optional<std::string>& joined) {
  return std::make_unique<S3Sink>(std::move(endpoint), std::move(pool), joined);
}

}  // namespace tensorizer
