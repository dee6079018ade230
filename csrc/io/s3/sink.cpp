#include "io/s3/sink.h"

// Saves an object. Its parts are sent as they fill, and the object appears when all are stored.
#include <algorithm>
#include <functional>
#include <mutex>

#include "base/error.h"
#include "base/number.h"
#include "codec/crc32.h"
#include "codec/hmac.h"
#include "io/http/client.h"
#include "io/http/operation.h"
#include "io/http/retry.h"
#include "io/http/upload.h"
#include "io/s3/receipt.h"
#include "io/upload/part_sink.h"
#include "io/uri.h"
#include "io/xml.h"

namespace tensorizer {

namespace {

// S3's own limits.
constexpr std::uint64_t kMostParts = 10000;
constexpr std::uint64_t kLargestPart = std::uint64_t{5} << 30;
// Servers may take minutes to assemble an object of many parts.
constexpr double kPatience = 600;
// The limit in seconds on removing an aborted upload: the caller waits for it.
constexpr double kRemoval = 2;
constexpr int kMostRemovals = 3;

constexpr PartLimits kLimits{kMostParts, kLargestPart, "an object in S3"};

// The receipt of a part as text: "CRC32 ETAG".
std::string text_of(const StoredPart& part) { return std::to_string(part.crc32) + ' ' + part.etag; }

class S3Sink final : public PartSink {
 public:
  // `joined`: see shared_s3_sink().
  S3Sink(HttpAccess access, std::uint64_t part_size, bool shared, std::string joined)
      : PartSink(kLimits, access.pool->options().connections, part_size, shared),
        client_(std::move(access)),
        upload_id_(std::move(joined)) {}
  ~S3Sink() override { abort(); }

  void leave() noexcept override {
    upload_id_.clear();
    abort();
  }

  void abort() noexcept override {
    stop();
    if (upload_id_.empty()) return;
    try {
      Cancel cancel{Cancel::Unattended{}};
      HttpOperation removal;
      removal.request.method = "DELETE";
      removal.request.query = {{"uploadId", std::exchange(upload_id_, {})}};
      HttpTries tries(client_, "save", 1, kRemoval);
      // Repeated until the server does not know the upload any more, which throws: a part that was
      // being sent may be stored after the first removal.
      for (int removals = 0; removals < kMostRemovals; ++removals) {
        operate(client_, removal, tries, cancel);
      }
    } catch (...) {
      // Ignored: abort() cannot report it. The bucket's lifecycle rules remove what is left.
    }
  }

  const std::string& label() const override { return client_.label(); }

 private:
  void send_whole(const UploadPart& part, Cancel& cancel) override { put(part, {}, cancel); }

  std::string send_part(const UploadPart& part, Cancel& cancel) override {
    return text_of(put(
        part, {{"partNumber", std::to_string(part.number + 1)}, {"uploadId", upload_name(cancel)}},
        cancel));
  }

  // Returns the identifier of the upload. The first call starts the upload.
  std::string upload_name(Cancel& cancel) override {
    const std::lock_guard lock(start_mutex_);
    if (!upload_id_.empty()) return upload_id_;
    HttpRequest request;
    request.method = "POST";
    request.query = {{"uploads", ""}};
    request.headers = {"Content-Type: application/octet-stream", "x-amz-checksum-algorithm: CRC32"};
    const std::string answer = ask(std::move(request), "InitiateMultipartUpload", cancel).text;
    upload_id_ = xml_text(answer, "UploadId").value_or("");
    if (upload_id_.empty()) client_.throw_wrong("did not start an upload");
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
    const HttpAnswer answer = ask(std::move(request), "", cancel).answer;
    const std::string_view theirs = answer.header("x-amz-checksum-crc32");
    if (!theirs.empty() && theirs != checksum) client_.throw_wrong("has stored different bytes");
    stored.etag = answer.header("etag");
    return stored;
  }

  void complete(std::uint64_t size, const Receipts& receipts, Cancel& cancel) override {
    const StoredParts stored = parsed(receipts);
    const std::string text = completion_of(stored);
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
      // After a 404, nothing else will tell.
      if (status == 404) return is_stored(size, stored, client_.options().retries, cancel);
      return (outcome.failure || status >= 500) && is_stored(size, stored, 0, cancel);
    };
    try {
      ask(std::move(request), kCompletion, cancel, is_done);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::NotFound) throw;
      client_.throw_wrong(
          "does not know the upload any more: it was aborted, or completed by a request whose "
          "response was lost");
    }
    upload_id_.clear();
  }

  StoredParts parsed(const Receipts& receipts) const {
    StoredParts stored;
    for (const auto& [number, receipt] : receipts) {
      const std::size_t space = std::min(receipt.find(' '), receipt.size());
      const auto crc32 = parse_number(std::string_view(receipt).substr(0, space));
      if (!crc32 || space == receipt.size()) {
        throw Error(ErrorKind::Internal, "another process has handed in no parts of " + label());
      }
      stored[number] = {receipt.substr(space + 1), static_cast<std::uint32_t>(*crc32)};
    }
    return stored;
  }

  // Returns true if the object exists and consists of the parts of this upload; false also if the
  // server does not tell.
  bool is_stored(std::uint64_t size, const StoredParts& stored, int retries, Cancel& cancel) {
    HttpOperation question;
    question.request.method = "HEAD";
    question.request.headers = {"x-amz-checksum-mode: ENABLED"};
    HttpTries tries(client_, "save", retries, client_.options().timeout);
    try {
      return consists_of(operate(client_, question, tries, cancel).answer, size, stored);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::Cancelled) throw;
      return false;
    }
  }

  // Sends a request until the response is one of S3's. `root`: for fault_of_answer(). After a
  // failed try, `is_done` says whether it had its effect anyway.
  HttpResult ask(HttpRequest request, std::string_view root, Cancel& cancel,
                 std::function<bool(const HttpOutcome&)> is_done = {}) {
    HttpOperation operation{std::move(request),
                            [root](const HttpAnswer& answer, std::string_view text) {
                              return fault_of_answer(answer, text, root);
                            },
                            std::move(is_done)};
    HttpTries tries(client_, "save");
    return operate(client_, operation, tries, cancel);
  }

  HttpClient client_;
  std::mutex start_mutex_;
  std::string upload_id_;
};

}  // namespace

std::unique_ptr<Sink> s3_sink(HttpAccess access, std::uint64_t part_size) {
  return std::make_unique<S3Sink>(std::move(access), part_size, false, "");
}

std::unique_ptr<SharedSink> shared_s3_sink(HttpAccess access,
                                           const std::optional<std::string>& joined) {
  return std::make_unique<S3Sink>(std::move(access), 0, true, joined.value_or(""));
}

}  // namespace tensorizer
