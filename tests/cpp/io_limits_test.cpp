// The limits that end a repetition: what a server or a file may repeat so often passes, and fails
// with a reason if it is repeated once more.
#include <functional>

#include "aws_home.h"
#include "io/http/fetch.h"
#include "io/http/open.h"
#include "io/http/retry.h"
#include "io/http/upload.h"
#include "io/redis/client.h"
#include "io/redis/commit.h"
#include "io/redis/keys.h"
#include "io/s3/open.h"
#include "io/s3/sink.h"
#include "tiny_redis.h"
#include "tiny_server.h"
#include "worlds.h"

namespace tensorizer {
namespace {

using namespace std::chrono_literals;
using namespace testing_support;

// A number that reaches `most` without an error, and not further.
struct Limit {
  std::string of;
  std::uint64_t most;
  std::function<void(std::uint64_t)> reach;
  ErrorKind kind;
  std::string says;
};

class Limits : public AwsHome {
 protected:
  static void expect_limits(const std::vector<Limit>& limits) {
    for (const Limit& limit : limits) {
      EXPECT_NO_THROW(limit.reach(limit.most)) << limit.of;
      const Error error = error_of([&] { limit.reach(limit.most + 1); });
      EXPECT_EQ(error.kind(), limit.kind) << limit.of << ": " << error.what();
      EXPECT_TRUE(contains(error.what(), limit.says)) << limit.of << ": " << error.what();
    }
  }

  static std::unique_ptr<HttpEndpoint> object_at(const std::string& url) {
    return s3_endpoint("s3", parse_s3_name("s3", "bucket/key"), s3_options(url), {});
  }
  static std::unique_ptr<HttpEndpoint> object(const TinyServer& server) {
    return object_at(server.url());
  }
  static std::shared_ptr<HttpPool> pool() { return std::make_shared<HttpPool>(HttpOptions{}); }

  // Loads from a web server that gives `answer` `count` times, and then the file.
  void load_after(std::uint64_t count, const TinyAnswer& answer) {
    TinyServer server(
        [&](const TinyRequest&) { return count-- > 0 ? answer : TinyAnswer{200, "the file", ""}; });
    EXPECT_EQ(read(*source(server.url("/f")), 0, 8), "the file");
  }
  // The same, from S3.
  void load_object_after(std::uint64_t count, const std::function<TinyAnswer()>& answer) {
    TinyServer server([&](const TinyRequest&) {
      return count-- > 0 ? answer() : TinyAnswer{200, "the file", ""};
    });
    EXPECT_EQ(read(*http_source({object(server), pool()}, {}, cancel_), 0, 8), "the file");
  }

  // Answers as a server with one file of four bytes, 'p', would.
  static std::string redis_reply(const TinyRedis::Words& words) {
    const std::string& name = words.front();
    if (name == "SCAN") return "*2\r\n$1\r\n0\r\n*1\r\n$10\r\np:header:0\r\n";
    if (name == "STRLEN") return ":4\r\n";
    if (name == "GETRANGE") return "$4\r\nfile\r\n";
    if (name == "UNLINK" || name == "RENAME" || name == "PERSIST") return "+QUEUED\r\n";
    if (name == "EXEC") return "*0\r\n";
    return "+OK\r\n";
  }
  // A server that gives `reply` to the first `count` commands of this name; null breaks the
  // connection.
  static TinyRedis::Handler redis_after(std::uint64_t count, const std::string& name,
                                        std::optional<std::string> reply) {
    return [=](const TinyRedis::Words& words) mutable -> std::optional<std::string> {
      if (words.front() != name || count == 0) return redis_reply(words);
      --count;
      return reply;
    };
  }
  void load_from_redis(const TinyRedis::Handler& handler) {
    const TinyRedis server(handler);
    EXPECT_EQ(read(*source(server.uri("p")), 0, 4), "file");
  }
  void commit_to_redis(const TinyRedis::Handler& handler) {
    const TinyRedis server(handler);
    const RedisOptions options;
    RedisClient client(redis_address(server.uri("p"), options), options);
    const RedisMove move{"p.saving", "p:header:0", 4};
    commit_redis_keys(*client.connect(cancel_), client.address(), options, {&move, 1}, cancel_);
  }

  const RecordedPauses pauses_{};
};

const std::optional<std::string> kNobody;  // a connection that breaks

TEST_F(Limits, EndWhatAServerRepeats) {
  const TinyAnswer busy{503, "", ""};
  const std::string skewed = "<Error><Code>RequestTimeTooSkewed</Code></Error>";
  const std::string date = "Date: Fri, 24 May 2013 00:00:00 GMT\r\n";
  int regions = 0;
  expect_limits({
      {"redirects", 10, [&](auto count) { load_after(count, {307, "", "Location: /g\r\n"}); },
       ErrorKind::Unavailable, "more than 10 redirects in a row"},
      {"retries of a web server", 5, [&](auto count) { load_after(count, busy); },
       ErrorKind::Unavailable, "answers with status 503, after 5 more tries"},
      {"recoveries from a wrong clock", 3,
       [&](auto count) { load_object_after(count, [&] { return TinyAnswer{403, skewed, date}; }); },
       ErrorKind::PermissionDenied, "after 3 more tries: 'RequestTimeTooSkewed'"},
      {"recoveries by another region", 3,
       [&](auto count) {
         load_object_after(count, [&] {
           return TinyAnswer{400, "",
                             "x-amz-bucket-region: r-" + std::to_string(++regions) + "\r\n"};
         });
       },
       ErrorKind::Unavailable, "answers with status 400, after 3 more tries"},
      {"connections to Redis that break", 5,
       [&](auto count) { load_from_redis(redis_after(count, "HELLO", kNobody)); },
       ErrorKind::Unavailable, "after 5 more tries"},
      {"reads from Redis that break", 5,
       [&](auto count) { load_from_redis(redis_after(count, "GETRANGE", kNobody)); },
       ErrorKind::Unavailable, "after 5 more tries"},
      {"listings of a file that is replaced", 19,
       [&](auto count) { load_from_redis(redis_after(count, "EXEC", "*-1\r\n")); },
       ErrorKind::Unavailable, "is saved again and again"},
      {"tries of a commit", 99,
       [&](auto count) { commit_to_redis(redis_after(count, "EXEC", "*-1\r\n")); },
       ErrorKind::Unavailable, "other clients keep saving it"},
  });
}

// A listing of so many names, in replies of one each.
TEST_F(Limits, EndAListing) {
  EXPECT_EQ(redis_listing_limits.keys, std::size_t{16'777'216});
  EXPECT_EQ(redis_listing_limits.bytes, std::uint64_t{1'073'741'824});
  EXPECT_EQ(redis_listing_limits.replies, std::uint64_t{65'536});
  Clock::duration pause{};
  const auto list = [&](std::uint64_t count) {
    std::uint64_t names = 0;
    load_from_redis([&](const TinyRedis::Words& words) -> std::optional<std::string> {
      if (words.front() != "SCAN") return redis_reply(words);
      sleep_for(pause);
      const std::string cursor = ++names < count ? std::to_string(names) : "0";
      return "*2\r\n$1\r\n" + cursor + "\r\n*1\r\n$10\r\np:header:0\r\n";
    });
  };
  const RedisListingLimits usual = redis_listing_limits;
  const std::string says = "lists its keys endlessly";
  redis_listing_limits.keys = 3;
  expect_limits({{"keys", 3, list, ErrorKind::Unavailable, says}});
  redis_listing_limits = {usual.keys, 55, usual.replies};  // with the cursors
  expect_limits({{"bytes of keys", 5, list, ErrorKind::Unavailable, says}});
  redis_listing_limits = {usual.keys, usual.bytes, 4};
  expect_limits({{"replies", 4, list, ErrorKind::Unavailable, says}});
  redis_listing_limits = usual;
  pause = 4s;
  expect_limits({{"slow replies", 8, list, ErrorKind::Unavailable, says}});
  for (const char* const reply :
       {"*1\r\n$1\r\n0\r\n", "*2\r\n$1\r\nx\r\n*0\r\n", "*3\r\n$1\r\n0\r\n*0\r\n*0\r\n"}) {
    const std::string why = message_of([&] { load_from_redis(redis_after(1, "SCAN", reply)); });
    EXPECT_TRUE(contains(why, says)) << why;
  }
}

// A listing goes on as long as the cursors are new, and ends when they repeat, at any distance.
TEST_F(Limits, EndAListingThatRepeats) {
  for (const std::uint64_t distance : {1, 2, 7, 100}) {
    std::uint64_t replies = 0;
    const auto list = [&](std::uint64_t fresh) {
      load_from_redis([&](const TinyRedis::Words& words) -> std::optional<std::string> {
        if (words.front() != "SCAN") return redis_reply(words);
        if (++replies > 1000) return redis_reply(words);
        const std::string cursor =
            std::to_string(replies < fresh ? replies : fresh + replies % distance);
        return "*2\r\n$" + std::to_string(cursor.size()) + "\r\n" + cursor + "\r\n*0\r\n";
      });
    };
    EXPECT_NO_THROW(list(1001)) << "1000 replies";
    replies = 0;
    const Error error = error_of([&] { list(10); });
    EXPECT_TRUE(contains(error.what(), "lists its keys endlessly")) << error.what();
    EXPECT_LT(replies, 4 * (10 + distance));
  }
}

TEST_F(Limits, EndWhatAnAnswerRepeats) {
  const auto digits = [](std::uint64_t count) { return std::string(count, '1'); };
  const auto parse_reply = [](const std::string& text) {
    RedisParser parser("'x'");
    ConstBytes bytes = as_bytes(text);
    while (!bytes.empty()) parser.take(bytes);
  };
  expect_limits({
      {"bytes of headers", 256 << 10,
       [&](auto count) {
         // Lines of 64 KiB, because libcurl has a limit of its own.
         const auto head = [](std::uint64_t rest) {
           std::string lines;
           for (int i = 0; i < 3; ++i) lines += "a: " + std::string((64 << 10) - 5, 'a') + "\r\n";
           return lines + "b: " + std::string(rest, 'b') + "\r\n";
         };
         const std::string before =
             "HTTP/1.1 200 x\r\nConnection: close\r\nContent-Length: 8\r\n\r\n";
         TinyServer server([&](const TinyRequest&) {
           return TinyAnswer{200, "the file", head(count - before.size() - head(0).size())};
         });
         EXPECT_EQ(read(*source(server.url("/f")), 0, 8), "the file");
       },
       ErrorKind::Unavailable, "its headers have more than 262144 bytes"},
      {"bytes of a small answer", 64 << 10,
       [&](auto count) {
         TinyServer server([&](const TinyRequest&) { return TinyAnswer{200, digits(count), ""}; });
         HttpQuestion question{.label = "the server"};
         question.request.url = server.url();
         EXPECT_EQ(http_fetch(question, {}, cancel_).body.size(), count);
       },
       ErrorKind::Unavailable, "answers with more than 65536 bytes"},
      {"bytes of a line from Redis", 64 << 10,
       [&](auto count) { parse_reply("+" + digits(count - 3) + "\r\n"); }, ErrorKind::Unavailable,
       "does not answer as Redis does"},
      {"bytes of a string from Redis", 128 << 20,
       [&](auto count) { parse_reply("$" + std::to_string(count) + "\r\nx"); },
       ErrorKind::Unavailable, "does not answer as Redis does"},
      {"lists in lists from Redis", 8,
       [&](auto count) {
         std::string text;
         for (std::uint64_t i = 0; i < count; ++i) text += "*1\r\n";
         parse_reply(text + ":1\r\n");
       },
       ErrorKind::Unavailable, "does not answer as Redis does"},
  });
}

TEST_F(Limits, EndWhatIsOnThisMachine) {
  const auto link_chain = [&](std::uint64_t count) {
    const Folder folder(testing::TempDir());
    for (std::uint64_t i = 0; i < count; ++i) {
      fs::create_symlink(std::to_string(i), folder / std::to_string(i + 1));
    }
    return save(*sink(folder / std::to_string(count)), head_, "data");
  };
  const auto size = [&](std::uint64_t total) {
    shared_s3_sink({object_at("http://127.0.0.1:1"), pool()}, {})->begin(1, total - 1);
  };
  const auto part = [&](std::uint64_t count) {
    const TinyServer server([](const TinyRequest& request) {
      return TinyAnswer{200,
                        request.method == "POST" ? "<InitiateMultipartUpload><UploadId>u"
                                                   "</UploadId></InitiateMultipartUpload>"
                                                 : "",
                        request.method == "PUT" ? "ETag: \"x\"\r\n" : ""};
    });
    const auto parts = s3_sink({object(server), pool()}, 1);
    parts->begin(0, std::nullopt);
    write(*parts, count - 1, "x");
  };
  expect_limits({
      {"links", 40, link_chain, ErrorKind::SystemError, "oo many levels of symbolic links"},
      {"parts", 10'000, part, ErrorKind::InvalidArgument, "more than 10000 parts of 1 bytes"},
      {"bytes of an object", 10'000 * (std::uint64_t{5} << 30), size, ErrorKind::InvalidArgument,
       "more than an object in S3 may have"},
  });
}

// ---- pauses

TEST_F(Limits, EndAPauseThatAServerWants) {
  for (const auto& [wanted, pause] : std::vector<std::pair<std::string, std::chrono::milliseconds>>{
           {"1", 1000ms},
           {"59", 59000ms},
           {"60", 60000ms},
           {"61", 60000ms},
           {"99999999", 60000ms},
           {"Fri, 24 May 2199 00:00:00 GMT", 60000ms}}) {
    load_after(1, {503, "", "Retry-After: " + wanted + "\r\n"});
    EXPECT_EQ(pauses_.so_far().back(), pause) << wanted;
  }
  load_after(1, {503, "", "Retry-After: 99999999999999999999\r\n"});
  EXPECT_LT(pauses_.so_far().back(), 100ms) << "no number";
}

TEST_F(Limits, EndThePausesBeforeRetries) {
  for (const auto& [count, pause] : std::vector<std::pair<int, std::chrono::milliseconds>>{
           {0, 50ms}, {1, 100ms}, {2, 200ms}, {7, 6400ms}, {8, 10000ms}, {1000, 10000ms}}) {
    EXPECT_EQ(shortest_pause(count), pause) << count;
  }
  Tries tries(1000);
  for (int i = 0; i < 1000; ++i) tries.wait(cancel_);
  int count = 0;
  for (const std::chrono::milliseconds pause : pauses_.so_far()) {
    EXPECT_GE(pause, shortest_pause(count)) << count;
    EXPECT_LT(pause, 2 * shortest_pause(count)) << count;
    ++count;
  }
  EXPECT_EQ(count, 1000);
}

TEST_F(Limits, StartAgainAfterSomeProgress) {
  Tries tries(1);
  tries.wait(cancel_);
  tries.count_progress((64 << 10) - 1);
  EXPECT_TRUE(tries.are_used_up());
  tries.count_progress(64 << 10);
  EXPECT_FALSE(tries.are_used_up());
}

// ---- what is sent and kept

TEST_F(Limits, KeepTheBeginOfWhatAServerSays) {
  TinyServer server([](const TinyRequest& request) {
    return TinyAnswer{request.path == "/no" ? 404 : 200, std::string(100'000, 'x'), ""};
  });
  const auto client_pool = pool();
  HttpClient client({url_endpoint(server.url("/"), {}), client_pool});
  for (const auto& [path, refusal, body] : {std::tuple{"/no", 16 << 10, 0}, {"/", 0, 64 << 10}}) {
    TextReceiver receiver;
    HttpRequest request;
    request.url = server.url(path);
    const HttpOutcome outcome = client.take()->ask(request, receiver, cancel_);
    EXPECT_FALSE(outcome.failure) << path;
    EXPECT_EQ(outcome.answer.refusal.size(), static_cast<std::size_t>(refusal)) << path;
    EXPECT_EQ(receiver.text.size(), static_cast<std::size_t>(body)) << path;
  }
}

TEST_F(Limits, CutACommandOfManyNames) {
  for (const std::size_t count : {1000, 1001}) {
    const TinyRedis server([](const TinyRedis::Words&) { return "+OK\r\n"; });
    const RedisOptions options;
    RedisClient client(redis_address(server.uri("p"), options), options);
    const auto connection = client.connect(cancel_);
    const std::vector<std::string_view> names(count, "n");
    const std::size_t commands = add_commands(*connection, "UNLINK", names);
    EXPECT_EQ(commands, count / 1001 + 1);
    connection->send(cancel_);
    for (std::size_t i = 0; i < commands; ++i) connection->receive_ok(cancel_);
    EXPECT_EQ(server.commands("UNLINK").size(), commands);
    EXPECT_EQ(server.commands("UNLINK").back().size(), count == 1000 ? 1001U : 2U);
  }
}

// A 303 asks for another request, which would store nothing.
TEST_F(Limits, FollowNoRedirectThatDropsTheBody) {
  TinyServer server(
      [](const TinyRequest&) { return TinyAnswer{303, "", "Location: /elsewhere\r\n"}; });
  const auto file = sink(server.url("/f"));
  const std::string why = message_of([&] { save(*file, "head", "data"); });
  EXPECT_TRUE(contains(why, "answers with status 303")) << why;
  EXPECT_EQ(server.requests().size(), 1U);
}

}  // namespace
}  // namespace tensorizer
