// How long is waited for what may never come. Tests of long waits lower the limits.
#include <fcntl.h>
#include <sys/stat.h>

#include <semaphore>

#include "aws_home.h"
#include "io/aws/credential_chain.h"
#include "io/named_secret.h"
#include "io/redis/open.h"
#include "io/s3/open.h"
#include "io/s3/sink.h"
#include "io/secret.h"
#include "io/stall.h"
#include "tiny_redis.h"
#include "tiny_server.h"

namespace tensorizer {
namespace {

using namespace std::chrono_literals;
using namespace testing_support;

// Another value of a limit while it lives.
template <typename Value>
class Lowered {
 public:
  Lowered(Value& limit, Value value) : limit_(limit), usual_(std::exchange(limit, value)) {}
  ~Lowered() { limit_ = usual_; }
  Lowered(const Lowered&) = delete;
  Lowered& operator=(const Lowered&) = delete;

 private:
  Value& limit_;
  const Value usual_;
};

using Patience = AwsHome;

TEST_F(Patience, EndsBelowARate) {
  for (const std::uint64_t bytes : {10239, 10240}) {
    const Clock::time_point begin{};
    StallWatch watch(10, 1000, begin);
    EXPECT_EQ(watch.has_stalled(1000 + bytes, begin + 10s), bytes < 10240) << bytes;
  }
}

TEST_F(Patience, WithTheWritersOfAPipe) {
  EXPECT_EQ(secret_pipe_patience, 10s);
  const Lowered lowered(secret_pipe_patience, 50ms);
  const std::string path = folder_ / "pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const Descriptor writer(::open(path.c_str(), O_RDWR));
  EXPECT_EQ(error_of([&] { resolve_secret("file:" + path); }).system_errno(), ETIMEDOUT);
}

TEST_F(Patience, WithAProgramThatPrintsCredentials) {
  EXPECT_EQ(credential_command_limits.time, 1min);
  EXPECT_EQ(credential_command_limits.output, 65536U);
  const CommandLimits usual = credential_command_limits;
  const auto credentials = [&](const std::string& command) {
    config("[default]\ncredential_process = " + command + "\n");
    return find_s3_credentials({}, {}, cancel_);
  };
  const Lowered time(credential_command_limits, {50ms, usual.output});
  const Error late = error_of([&] { credentials("sleep 1000"); });
  EXPECT_TRUE(contains(late.what(), "did not finish within 0 s")) << late.what();
  const Lowered output(credential_command_limits, {usual.time, 4});
  const Error large = error_of([&] { credentials("printf 12345"); });
  EXPECT_TRUE(contains(large.what(), "prints more than 4 bytes")) << large.what();
}

// Asks the object's server, and records how long each kind of request may take.
class RecordedPatience final : public HttpEndpoint {
 public:
  RecordedPatience(std::unique_ptr<HttpEndpoint> inner, std::map<std::string, double>& seconds)
      : inner_(std::move(inner)), seconds_(seconds) {}

  void complete(HttpRequest& request, Cancel& cancel) override {
    const std::string query = request.query.empty() ? "" : request.query.front().first;
    seconds_[request.method + " " + query] = request.patience;
    inner_->complete(request, cancel);
  }
  HttpRefusal learn(const HttpRequest& request, const HttpOutcome& outcome) override {
    return inner_->learn(request, outcome);
  }
  const std::string& label() const override { return inner_->label(); }

 private:
  const std::unique_ptr<HttpEndpoint> inner_;
  std::map<std::string, double>& seconds_;
};

TinyAnswer upload_answer(const TinyRequest& request) {
  if (request.method != "POST") return {200, "", "ETag: \"0\"\r\n"};
  const std::string root =
      request.path.ends_with("?uploads=") ? "InitiateMultipartUpload" : "CompleteMultipartUpload";
  return {200,
          "<" + root + "Result><UploadId>u</UploadId><ETag>\"0-1\"</ETag></" + root + "Result>",
          ""};
}

TEST_F(Patience, WithAServerThatPutsAnObjectTogether) {
  for (const auto& [timeout, patience] :
       std::vector<std::pair<double, double>>{{0, 600}, {7, 7}, {601, 600}}) {
    const TinyServer server(upload_answer);
    std::map<std::string, double> seconds;
    HttpOptions http;
    http.timeout = timeout;
    http.connections = 1;
    const auto object = s3_sink(
        {std::make_unique<RecordedPatience>(
             s3_endpoint("s3", parse_s3_name("s3", "bucket/key"), s3_options(server.url()), {}),
             seconds),
         std::make_shared<HttpPool>(http)},
        1);
    object->begin(0, std::nullopt);
    write(*object, 0, "ab");
    object->finish(2, cancel_);
    EXPECT_EQ(seconds,
              (std::map<std::string, double>{
                  {"POST uploads", 0}, {"PUT partNumber", 0}, {"POST uploadId", patience}}))
        << timeout;
  }
}

// No part runs further ahead of the first missing one.
TEST_F(Patience, WithAPartThatIsMissing) {
  constexpr std::uint64_t kPart = 8 << 20;
  constexpr std::uint64_t kParts = 23;
  std::mutex mutex;
  std::vector<std::string> parts;
  std::counting_semaphore<> came{0};
  const TinyServer server([&](const TinyRequest& request) {
    if (request.method == "PUT") {
      const std::lock_guard lock(mutex);
      parts.push_back(request.path.substr(0, request.path.find('&')));
      came.release();
    }
    return upload_answer(request);
  });
  const auto object =
      s3_sink({s3_endpoint("s3", parse_s3_name("s3", "bucket/key"), s3_options(server.url()), {}),
               std::make_shared<HttpPool>(HttpOptions{})},
              1);
  object->begin(0, kPart * kParts);
  const std::string bytes(kPart, 'x');
  const ConstBytes piece = as_bytes(bytes);
  for (std::uint64_t i = 1; i < kParts; ++i) {
    object->write(i * kPart, {&piece, 1}, KeptUntil::End, cancel_);
  }
  for (int i = 0; i < 20; ++i) came.acquire();
  EXPECT_FALSE(came.try_acquire_for(300ms)) << "the 21st part is sent";
  object->write(0, {&piece, 1}, KeptUntil::End, cancel_);
  object->finish(kPart * kParts, cancel_);
  EXPECT_EQ(parts.size(), kParts);
}

// The two times of abort() with a server that is silent: the other one would never pass.
TEST_F(Patience, WithAServerThatShallRemoveKeys) {
  EXPECT_EQ(redis_abort_seconds.usual, 1);
  EXPECT_EQ(redis_abort_seconds.hurried, 0.05);
  for (const bool cancels : {false, true}) {
    const double never = 100'000;
    const Lowered lowered(redis_abort_seconds,
                          cancels ? RedisAbortSeconds{never, 0.1} : RedisAbortSeconds{0.1, never});
    const TinyRedis server([&](const TinyRedis::Words& words) -> std::optional<std::string> {
      if (words.front() == "UNLINK") return "";
      if (words.front() == "SCAN") return "*2\r\n$1\r\n0\r\n*0\r\n";
      if (words.front() != "SETEX") return ":1\r\n";
      if (!cancels) return "+OK\r\n";
      cancel_.request();
      return "";
    });
    const auto file = open_redis_sink(server.uri("p"), {}, cancel_);
    file->begin(4, 0);
    if (cancels) {
      EXPECT_EQ(error_of([&] { file->write_head(as_bytes("head"), cancel_); }).kind(),
                ErrorKind::Cancelled);
    } else {
      file->write_head(as_bytes("head"), cancel_);
    }
    const auto begin = std::chrono::steady_clock::now();
    file->abort();
    EXPECT_GE(std::chrono::steady_clock::now() - begin, 100ms);
    EXPECT_FALSE(server.commands("UNLINK").empty());
  }
}

}  // namespace
}  // namespace tensorizer
