// Saves of objects: in one request or in parts, and what is removed when a save ends early.
#include <atomic>

#include "aws_home.h"
#include "io/s3/open.h"
#include "io/s3/sink.h"
#include "tiny_server.h"
#include "worlds.h"

namespace tensorizer {
namespace {

using namespace std::chrono_literals;
using namespace testing_support;

class S3SinkTest : public AwsHome {
 protected:
  std::unique_ptr<Sink> object(std::uint64_t part_size) {
    return s3_sink({s3_endpoint("s3", parse_s3_name("s3", "bucket/key"), s3_, {}),
                    std::make_shared<HttpPool>(HttpOptions{})},
                   part_size);
  }

  // Returns the requests so far as "METHOD /path?query".
  std::vector<std::string> asked() const {
    std::vector<std::string> lines;
    for (const TinyRequest& request : server_.requests()) {
      lines.push_back(request.method + " " + request.path);
    }
    return lines;
  }
  std::size_t removals() const {
    const std::vector<std::string> lines = asked();
    return static_cast<std::size_t>(std::ranges::count(lines, "DELETE /bucket/key?uploadId=u"));
  }

  std::optional<TinyAnswer> answer(const TinyRequest& request) {
    if (request.method == "DELETE") {
      return TinyAnswer{removal_, "", removal_ == 503 ? "Retry-After: 60\r\n" : ""};
    }
    if (request.method == "PUT" && is_silent_) return std::nullopt;
    if (request.method == "PUT") return TinyAnswer{200, "", "ETag: \"0\"\r\n"};
    const std::string root =
        request.path.ends_with("?uploads=") ? "InitiateMultipartUpload" : "CompleteMultipartUpload";
    return TinyAnswer{
        200, "<" + root + "Result><UploadId>u</UploadId><ETag>\"0-1\"</ETag></" + root + "Result>",
        ""};
  }

  std::atomic<int> removal_ = 204;  // the status
  std::atomic<bool> is_silent_ = false;
  const TinyServer server_{[this](const TinyRequest& request) { return answer(request); }};
  const S3Options s3_ = s3_options(server_.url());
};

const std::vector<std::string> kOnePart{"PUT /bucket/key"};
const std::vector<std::string> kTwoParts{
    "POST /bucket/key?uploads=", "PUT /bucket/key?partNumber=1&uploadId=u",
    "PUT /bucket/key?partNumber=2&uploadId=u", "POST /bucket/key?uploadId=u"};

TEST_F(S3SinkTest, AnObjectOfOnePartTakesOneRequest) {
  for (const std::size_t size : {0, 1, 9}) {
    const std::size_t before = asked().size();
    const auto sink = object(10);
    sink->begin(0, std::nullopt);
    if (size > 0) write(*sink, 0, text_pattern(size));
    sink->finish(size, cancel_);
    EXPECT_EQ(asked().size(), before + 1);
    EXPECT_EQ(asked().back(), kOnePart.front());
    EXPECT_EQ(server_.requests().back().body, text_pattern(size));
  }
}

// A full part is sent before the end of the object is known.
TEST_F(S3SinkTest, ALongerObjectIsSentInParts) {
  HttpOptions one_at_a_time;
  one_at_a_time.connections = 1;
  const auto sink = s3_sink({s3_endpoint("s3", parse_s3_name("s3", "bucket/key"), s3_, {}),
                             std::make_shared<HttpPool>(one_at_a_time)},
                            10);
  sink->begin(0, std::nullopt);
  write(*sink, 0, text_pattern(11));
  sink->finish(11, cancel_);
  EXPECT_EQ(asked(), kTwoParts);
  EXPECT_EQ(server_.requests()[1].body + server_.requests()[2].body, text_pattern(11));
}

// The size of the parts follows from that of the object, if that is known.
TEST_F(S3SinkTest, PartsOfAKnownSizeHave8MiBOrMore) {
  const std::string text = text_pattern((8 << 20) + 1);
  for (const std::size_t size : {8 << 20, (8 << 20) + 1}) {
    const std::size_t before = asked().size();
    save(*object(1), text.substr(0, 10), std::string_view(text).substr(10, size - 10));
    EXPECT_EQ(asked().size() - before, size == 8 << 20 ? 1U : 4U);
  }
  const auto unit = [&](std::uint64_t size) {
    const auto shared =
        shared_s3_sink({s3_endpoint("s3", parse_s3_name("s3", "bucket/key"), s3_, {}),
                        std::make_shared<HttpPool>(HttpOptions{})},
                       {});
    shared->begin(0, size);
    return shared->unit();
  };
  EXPECT_EQ(unit(10'000 * (std::uint64_t{8} << 20)), 8U << 20);
  EXPECT_EQ(unit(10'000 * (std::uint64_t{8} << 20) + 1), (8U << 20) + 1);
}

TEST_F(S3SinkTest, AnAbortedUploadIsRemovedUntilItIsGone) {
  const auto abort = [&] {
    const auto sink = object(10);
    sink->begin(0, std::nullopt);
    write(*sink, 0, text_pattern(11));
    sink->prepare(11, cancel_);
    sink->abort();
    return removals();
  };
  EXPECT_EQ(abort(), 3U) << "the server seems to know it after each removal";
  removal_ = 404;
  EXPECT_EQ(abort(), 3U + 1);
  const RecordedPauses pauses{};
  removal_ = 503;
  EXPECT_EQ(abort(), 3U + 1 + 1);
  EXPECT_TRUE(pauses.so_far().empty()) << "it waits for a try that would come too late";
}

// The server takes parts and does not answer.
TEST_F(S3SinkTest, FewCopiesOfPartsWait) {
  is_silent_ = true;
  const auto sink = object(10);
  sink->begin(0, std::nullopt);
  const std::string part = text_pattern(10);
  std::uint64_t written = 0;
  const Polls polls([&](int count) {
    if (count == 2) cancel_.request();
  });
  EXPECT_EQ(kind_of([&] {
              for (;; ++written) write(*sink, 10 * written, part);
            }),
            ErrorKind::Cancelled);
  EXPECT_EQ(written, 5U) << "four, and one that is sent";
}

TEST_F(S3SinkTest, AMissingObjectIsRemovedAlready) {
  const auto remove = [&](int status) {
    removal_ = status;
    SinkOptions options;
    options.given = {{"s3_endpoint", server_.url()},
                     {"force_http", "true"},
                     {"s3_access_key_id", "AKIA"},
                     {"s3_secret_access_key", "secret"}};
    remove_file("s3://bucket/key", options, cancel_);
  };
  for (const int status : {200, 204, 404}) EXPECT_NO_THROW(remove(status)) << status;
  EXPECT_EQ(kind_of([&] { remove(403); }), ErrorKind::PermissionDenied);
}

}  // namespace
}  // namespace tensorizer
