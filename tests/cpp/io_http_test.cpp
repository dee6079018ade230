// Responses of web servers, redirects, and URLs that hold secrets.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"
#include "io/http/answer.h"
#include "io/http/endpoint.h"
#include "io/http/open.h"
#include "io/places/open.h"
#include "io/redis/open.h"
#include "io/secret.h"
#include "io/url.h"
#include "io_support.h"

namespace tensorizer {
namespace {

using testing_support::Folder;
using testing_support::write_file;

HttpAnswer answer_of(std::string_view line) {
  HttpAnswer answer;
  answer.take_header(line);
  return answer;
}

TEST(HttpAnswer, KnowsItsRange) {
  const HttpAnswer answer = answer_of("content-RANGE:  bytes 5-9/1234 \r\n");
  EXPECT_EQ(answer.begin, 5U);
  EXPECT_EQ(answer.end, 10U);
  EXPECT_EQ(answer.object.size, 1234U);
  EXPECT_EQ(answer_of("Content-Range: bytes 0-0/*").end, 1U);
  EXPECT_FALSE(answer_of("Content-Range: bytes 0-0/*").object.size);
  EXPECT_EQ(answer_of("Content-Range: Bytes 0-0/7").object.size, 7U) << "in any case";
}

TEST(HttpAnswer, TakesTheLastOfSeveralHeaders) {
  HttpAnswer answer;
  for (const char* const line : {"ETag: \"a\"", "Other: b", "etag: \"c\""})
    answer.take_header(line);
  EXPECT_EQ(answer.object.etag, "\"c\"");
  EXPECT_EQ(answer.header("etag"), "\"c\"");
  EXPECT_EQ(answer.header("none"), "");
}

TEST(HttpAnswer, TakesNoNonsenseForARange) {
  for (const std::string_view value :
       {"", "bytes", "bytes ", "bytes 5", "bytes 5-", "bytes -5/9", "bytes 9-5/10", "bytes a-b/c",
        "bytes 0-18446744073709551615/1", "bytes 0-99999999999999999999/1", "bytes */5",
        "items 0-4/5", "bytes 0/4-5", "bytes +1-2/3", "bytes 0x1-2/3"}) {
    const HttpAnswer answer = answer_of("Content-Range: " + std::string(value));
    EXPECT_FALSE(answer.end) << value;
    EXPECT_EQ(answer.begin, 0U) << value;
  }
}

TEST(HttpAnswer, KnowsStrongTags) {
  EXPECT_EQ(answer_of("ETag: \"a b\"\r\n").object.etag, "\"a b\"");
  EXPECT_TRUE(answer_of("ETag: \"a b\"").object.has_strong_etag());
  EXPECT_EQ(answer_of("ETag: W/\"a\"").object.etag, "W/\"a\"") << "another one is another file";
  EXPECT_EQ(answer_of("Last-Modified: now").object.last_modified, "now");
  // Values that would end in the wrong place in If-Match.
  for (const char* etag : {"W/\"a\"", "", "a", "\"", "\"a", "\"a\"b\"", "\"a\rX-Forged: b\"",
                           "\"a\nX-Forged: b\"", "\"a\", \"b\"", "*"}) {
    EXPECT_FALSE(answer_of("ETag: " + std::string(etag)).object.has_strong_etag()) << etag;
  }
}

TEST(HttpAnswer, KnowsWhatTellsFilesApart) {
  const auto tells = [](const std::string& etag, const std::string& modified,
                        const std::string& date) {
    HttpAnswer answer;
    if (!etag.empty()) answer.take_header("ETag: " + etag);
    if (!modified.empty()) answer.take_header("Last-Modified: " + modified);
    if (!date.empty()) answer.take_header("Date: " + date);
    return answer.has_strong_validator();
  };
  const std::string now = "Sun, 13 Sep 2020 12:26:40 GMT";  // 5f5e1000 in seconds
  const std::string later = "Sun, 13 Sep 2020 12:26:41 GMT";
  EXPECT_TRUE(tells("\"a\"", "", ""));
  EXPECT_TRUE(tells("\"a\"", now, now));
  EXPECT_TRUE(tells("", now, later));
  EXPECT_TRUE(tells("W/\"a\"", now, later));
  EXPECT_TRUE(tells("\"5f5e1000-4a\"", now, later));
  EXPECT_FALSE(tells("\"5f5e1000-4a\"", now, now)) << "nginx's is the time and the size";
  EXPECT_FALSE(tells("", now, now));
  EXPECT_FALSE(tells("", later, now));
  EXPECT_FALSE(tells("", now, ""));
  EXPECT_FALSE(tells("", "some day", later));
  EXPECT_FALSE(tells("W/\"a\"", "", later));
  EXPECT_FALSE(tells("", "", ""));
}

TEST(HttpAnswer, KnowsTheRest) {
  for (const std::string value : {"gzip", "GZIP", "aws-chunked,gzip", "gzip, identity", "br"}) {
    EXPECT_TRUE(answer_of("Content-Encoding: " + value).encoded) << value;
  }
  for (const std::string value :
       {"", "identity", "aws-chunked", "binary", "UTF-8", "aws-chunked, identity", ","}) {
    EXPECT_FALSE(answer_of("Content-Encoding: " + value).encoded) << value;
  }
  HttpAnswer twice = answer_of("Content-Encoding: gzip");
  twice.take_header("Content-Encoding: identity");
  EXPECT_TRUE(twice.encoded);
  EXPECT_EQ(answer_of("Content-Length: 7").content_length, 7U);
  EXPECT_FALSE(answer_of("Content-Length: -7").content_length);
  EXPECT_EQ(answer_of("Retry-After: 99999999").retry_after, std::chrono::seconds(3600));
  EXPECT_FALSE(answer_of("Retry-After: soon").retry_after);
  EXPECT_EQ(answer_of("Retry-After: Fri, 24 May 2013 00:00:00 GMT").retry_after,
            std::chrono::seconds(0));
  EXPECT_EQ(answer_of("Retry-After: Fri, 24 May 2099 00:00:00 GMT").retry_after,
            std::chrono::seconds(3600));
  EXPECT_EQ(answer_of("X-Any:  thing \r\n").header("x-any"), "thing");
  answer_of("no colon");
  answer_of(":");
  answer_of("");
}

// A file whose server redirects to another URL.
class MovedTest : public testing::Test {
 protected:
  static constexpr const char* kHome = "http://home/x";
  static constexpr const char* kElsewhere = "http://node/x?signature";

  HttpRequest request() {
    HttpRequest request;
    Cancel cancel;
    place_->complete(request, cancel);
    return request;
  }
  // Returns what the endpoint learns from a status, or from no response if it is 0.
  HttpRefusal learn(const HttpRequest& request, int status, const std::string& url) {
    HttpOutcome outcome;
    outcome.answer.status = status;
    outcome.url = url;
    if (status == 0) outcome.failure = ConnectionFailure{.what = "nobody is there"};
    return place_->learn(request, outcome);
  }

  const HttpOptions options_{};
  const std::unique_ptr<HttpEndpoint> place_ = url_endpoint(kHome, options_);
};

TEST_F(MovedTest, IsAskedForThereUntilItIsRefused) {
  learn(request(), 206, kElsewhere);
  const HttpRequest one = request();
  const HttpRequest other = request();
  EXPECT_EQ(one.url, kElsewhere);
  // The signature in the URL has expired, for all requests in flight.
  EXPECT_TRUE(learn(one, 403, kElsewhere).recovered);
  EXPECT_TRUE(learn(other, 403, kElsewhere).recovered);
  EXPECT_EQ(request().url, kHome);
  EXPECT_FALSE(learn(request(), 403, kElsewhere).recovered) << "it has been asked for at home";
}

TEST_F(MovedTest, IsAskedForAtHomeWhenNobodyIsThere) {
  for (const int status : {0, 503}) {
    learn(request(), 206, kElsewhere);
    const HttpRequest asked = request();
    const HttpRefusal refusal = learn(asked, status, kElsewhere);
    EXPECT_TRUE(refusal.temporary && !refusal.recovered) << status;
    EXPECT_EQ(request().url, kHome);
    // A failure of the old target does not discard the new one.
    learn(request(), 206, "http://another/x");
    learn(asked, status, kElsewhere);
    EXPECT_EQ(request().url, "http://another/x");
    learn(request(), 404, "http://another/x");
  }
}

TEST_F(MovedTest, HasChangedWhereverItIs) {
  learn(request(), 206, kElsewhere);
  for (const int status : {412, 416}) {
    EXPECT_FALSE(learn(request(), status, kElsewhere).recovered);
    EXPECT_EQ(request().url, kElsewhere);
  }
}

TEST(HttpUrl, KnowsItsOrigin) {
  EXPECT_EQ(origin_of("HTTPS://me:pass@Host/x?y"), "https://host:443");
  EXPECT_EQ(origin_of("http://host:80/x"), origin_of("http:///host"));
  EXPECT_NE(origin_of("http://host"), origin_of("https://host"));
  EXPECT_EQ(origin_of("http://%32"), "http://0.0.0.2:80");
  for (const char* url : {"", "host", "ftp://host", "file:///x", "http://", "http://a b/"}) {
    EXPECT_EQ(origin_of(url), "") << url;
  }
}

TEST(HttpUrl, LeadsOn) {
  const std::string base = "http://me:pa%40ss@host/a/b?c";
  EXPECT_EQ(redirected(base, "/x y"), "http://me:pa%40ss@host/x%20y");
  EXPECT_EQ(redirected(base, "d"), "http://me:pa%40ss@host/a/d");
  EXPECT_EQ(redirected(base, "http://HOST:80/x"), "http://me:pa%40ss@HOST:80/x");
  EXPECT_EQ(redirected(base, "http://you@host/x"), "http://you@host/x");
  for (const char* elsewhere :
       {"//other/x", "http://other/x", "http://host:8/x", "https://host/x"}) {
    const std::optional<std::string> url = redirected(base, elsewhere);
    ASSERT_TRUE(url) << elsewhere;
    EXPECT_EQ(url->find('@'), std::string::npos) << *url;
  }
  for (const char* nowhere : {"ftp://host/", "file:///x", "http://", "http://h/\r\nX: y"}) {
    EXPECT_FALSE(redirected(base, nowhere)) << nowhere;
  }
}

TEST(Secret, IsStruckOutOfText) {
  Secrets secrets;
  add_header_secrets(secrets, "Authorization: Bearer abcdef");
  add_header_secrets(secrets, "Cookie: id=12345; theme=dark==");
  add_header_secrets(secrets, "Proxy-Authorization: Basic bWU6c2VzYW1lIDQy");
  add_header_secrets(secrets, "X-Empty: ");
  add_header_secrets(secrets, "X-Version: 7");
  add_url_secrets(secrets, "https://user:p%20q%20r@host/path?token=a%2Bbc&plain&sig=d+e%3D");
  EXPECT_EQ(redacted("the token ABCDEF of Bearer abcdef, abcdefgh", secrets),
            "the token ... of ..., ...gh");
  EXPECT_EQ(redacted("12345 id=12345 dark==", secrets), "... ... ...");
  EXPECT_EQ(redacted("Bearer a%2fb%2Bc%3D%3D, a/b%2Bc%3D%3D", Secrets{"a/b+c=="}),
            "Bearer ..., ...");
  EXPECT_EQ(redacted("version 7 of 17", secrets), "version ... of 17");
  EXPECT_EQ(redacted("user, p%20q%20r, p q r, a%2Bbc, a+bc", secrets), "..., ..., ..., ..., ...");
  EXPECT_EQ(redacted("d+e%3D, d+e=, d e=", secrets), "..., ..., ...") << "as forms are read, too";
  EXPECT_EQ(redacted("dXNlcjpwIHEgcg==", secrets), "...") << "as a header has it";
  add_url_secrets(secrets, "s3://bucket/key?sig=v+w/x=");
  EXPECT_EQ(redacted("v+w/x=, v%2Bw%2Fx%3D, v%2Bw/x%3D", secrets), "..., ..., ...") << "as sent";
  EXPECT_EQ(redacted("Basic: bWU6c2VzYW1lIDQy, me:sesame 42", secrets), "Basic: ..., ...:...");
  add_header_secrets(secrets, R"(X-Auth: {"token":"ab1cde"})");
  add_header_secrets(secrets, R"(Authorization: Digest user="fg1hij", response="kl1mno")");
  add_header_secrets(secrets, "Authorization: AWS pq1rst:uv1wxy");
  add_header_secrets(secrets, "X-Login: Basic eW91OnplYnJhNDI=");
  EXPECT_EQ(redacted("ab1cde fg1hij kl1mno pq1rst uv1wxy zebra42", secrets),
            "... ... ... ... ... ...");
  EXPECT_EQ(redacted("host/path: 'x'", secrets), "host/path: 'x'");
  EXPECT_EQ(redacted("anything", Secrets{""}), "anything");
  EXPECT_EQ(redacted("......", Secrets{"...."}), "...");
}

TEST(Secret, IsTakenOutOfAUrl) {
  EXPECT_EQ(without_secrets("https://me:pass@host:8/a/b?sig=x#y"), "https://host:8/a/b?...");
  EXPECT_EQ(without_secrets("https://a@b@host/x"), "https://host/x");
  EXPECT_EQ(without_secrets("https://host?sig=me@x/y"), "https://host?...");
  EXPECT_EQ(without_secrets("https://host/a@b"), "https://host/a@b");
  EXPECT_EQ(without_secrets("http:///me:pass@host/x"), "http:///host/x");
  EXPECT_EQ(without_secrets("http:////me:pass@host?x"), "http:////host?...");
  EXPECT_EQ(without_secrets("http:///"), "http:///");
  EXPECT_EQ(without_secrets("az:/me:pass@a/b?sig=x"), "az:/a/b?...");
  EXPECT_EQ(without_secrets("s3:b?sig=x"), "s3:b?...");
  // The parameters of a signed URL that were copied with the key of an object.
  EXPECT_EQ(without_secrets("s3://b/k?X-Amz-Signature=x"), "s3://b/k?...");
  EXPECT_EQ(without_secrets("az://a/c/k?b#1?sv=1&SIG=x"), "az://a/c/k?...");
  EXPECT_EQ(without_secrets("s3://b/k?s3_secret_access_key=x"), "s3://b/k?...");
  EXPECT_TRUE(holds_secret("gs://b/k?X-Goog-Signature=x"));
  for (const char* uri : {"s3://b/what?/a#1/k", "S3://b/#1?", "gs://b/a?b=1", "az://a/c/k?#",
                          "hf://o/m/a?b#c", "FILE:///a?b#c"}) {
    EXPECT_EQ(without_secrets(uri), uri);
    EXPECT_FALSE(holds_secret(uri)) << uri;
  }
  EXPECT_EQ(without_secrets("/a:b@c?d"), "/a:b@c?d");
  EXPECT_EQ(without_secrets("a?b@c"), "a?b@c");
  EXPECT_EQ(without_secrets("file:///a?b@c"), "file:///a?b@c");
  EXPECT_EQ(without_secrets("/a?b"), "/a?b");
  EXPECT_EQ(without_secrets("unix://me:pass@/a@b?prefix=c@d&db=1"), "unix:///a@b?prefix=c@d&db=1");
  EXPECT_EQ(without_secrets("unix:///a@b?prefix=c@d"), "unix:///a@b?prefix=c@d");
  EXPECT_EQ(without_secrets("unix:///a?prefix=c&password=d"), "unix:///a?...");
  EXPECT_FALSE(holds_secret("unix:///a@b?prefix=c&db=1"));
  EXPECT_TRUE(holds_secret("unix://:x@/a@b?prefix=c&db=1"));
  EXPECT_TRUE(holds_secret("Unix:///a?db=1&x"));
  EXPECT_TRUE(holds_secret("unix:///a?"));
  // A password that should have been escaped.
  for (const char* password : {"a/b", "a/b@c", "/"}) {
    const std::string login = std::string(":") + password + "@host:1/p";
    EXPECT_EQ(without_secrets("redis://" + login), "redis://host:1/p") << password;
    EXPECT_EQ(without_secrets("http://user" + login), "http://host:1/p") << password;
    EXPECT_TRUE(holds_secret("http://user" + login)) << password;
  }
  for (const char* password : {"a?b", "a#b", "?", "a/b@c?d", "12?34", "12/3#4@5", "1/2@3?4"}) {
    const std::string login = std::string(":") + password + "@host:1/p";
    EXPECT_EQ(without_secrets("redis://" + login), "redis://...") << password;
    EXPECT_EQ(without_secrets("http://user" + login), "http://...") << password;
    EXPECT_TRUE(holds_secret("http://user" + login)) << password;
  }
  // Ambiguous: either a port and a path, or a password.
  EXPECT_EQ(without_secrets("http://u:1/PW@host/"), "http://...@host/");
  EXPECT_EQ(without_secrets("http://u:1?PW@host/x?y"), "http://...");
  EXPECT_TRUE(holds_secret("http://u:1/PW@host/"));
  Secrets secrets;
  add_url_secrets(secrets, "http://u:1/PW@host/");
  EXPECT_EQ(redacted("cannot resolve u; no PW, no 1/PW", secrets),
            "cannot resolve u; no PW, no ...");
  // As likely the parameters of an ordinary URL as a password.
  for (const char* host : {"vm:8080", "vm:", "vm:80a", "vm.example.com:8080"}) {
    for (const char* rest :
         {"/m?user=me@x.com&token=PW", "?token=a@PW", "/m#a@PW", "/a@b?c=d@PW"}) {
      const std::string url = std::string("http://") + host + rest;
      EXPECT_EQ(without_secrets(url), "http://...") << url;
      EXPECT_TRUE(holds_secret(url)) << url;
    }
  }
  Secrets parameters;
  add_url_secrets(parameters, "http://vm:8080/m?user=me@x.com&token=PWPW");
  EXPECT_EQ(redacted("vm has no PWPW for me@x.com", parameters), "vm has no ... for ...");
  EXPECT_EQ(without_secrets("http://localhost:80/m?user=me@x.com&token=PW"),
            "http://localhost:80/m?...");
  for (const char* uri : {"http://host:80/a", "http://localhost:80/a@b", "http://127.0.0.1:80/a@b",
                          "http://[::1]:80/a@b"}) {
    EXPECT_EQ(without_secrets(uri), uri);
    EXPECT_FALSE(holds_secret(uri)) << uri;
  }
  EXPECT_EQ(without_secrets("http://[::1]/a@b"), "http://[::1]/a@b");
  EXPECT_EQ(without_secrets("s3://bucket/a:b@c"), "s3://bucket/a:b@c");
  for (const char* uri : {"https://u@h/x", "https://h/x?y", "redis://:p@h"}) {
    EXPECT_TRUE(holds_secret(uri)) << uri;
  }
  for (const char* uri : {"https://h/x@y", "https://h/x#y", "file:///x?y", "x?y@z", "fd:3"}) {
    EXPECT_FALSE(holds_secret(uri)) << uri;
  }
}

TEST(Place, IsThatOfTheConnection) {
  // In messages these look as if they had a login.
  EXPECT_NE(signed_path("http://A:1/x@y/m"), signed_path("http://B:2/z@y/m"));
  EXPECT_EQ(signed_path("HTTP://A:1/x@y/%6d?z#z"), "http://a:1/x@y/m");
  EXPECT_EQ(signed_path("http://u:p%40%2F@A:1/m"), "http://a:1/m");
  EXPECT_EQ(signed_path("redis://host:6379/prod@1/m"), "redis://host/prod@1/m");
  EXPECT_EQ(signed_path("rediss://u:p@1@HOST:1//m"), "rediss://host:1/m");
  EXPECT_EQ(signed_path("redis://host"), "redis://host/");
  EXPECT_NE(signed_path("redis://host:63790/m"), signed_path("redis://host/m"));
  EXPECT_NE(signed_path("s3://a:1@b/k"), signed_path("s3://a:2@b/k")) << "a bucket, not a login";
  const auto identity = [](const PlaceKind& kind, const std::string& uri) {
    return kind.identity(uri);
  };
  EXPECT_NE(identity(web_servers, "http://A:1/x@y/m"), identity(web_servers, "http://B:2/x@y/m"));
  EXPECT_NE(identity(web_servers, "http://a/m?x"), identity(web_servers, "http://a/m?y"));
  EXPECT_EQ(identity(web_servers, "http://u:p@a/m#x"), identity(web_servers, "http://a/m"));
  EXPECT_NE(identity(redis_files, "redis://a:1/x@y/m"), identity(redis_files, "redis://b:2/x@y/m"));
  EXPECT_EQ(identity(redis_files, "redis://:p@a/m"), identity(redis_files, "redis://a:6379/m"));
  EXPECT_NE(identity(redis_files, "unix:///s?prefix=m&db=1"),
            identity(redis_files, "unix:///s?prefix=m&db=2"));
}

TEST(Place, IsNotThatOfAUrlThatNobodyCanConnectTo) {
  for (const char* url : {"http://me:S3C%40R%2FT%40PW@host:99999/m", "http://me:S%40PW@a b/m",
                          "http://me:a#PW@host/m", "http://me:a/PW@host/m"}) {
    const std::string message = testing_support::message_of([&] { signed_path(url); });
    EXPECT_NE(message.find("is not a valid URL"), std::string::npos) << url << message;
    EXPECT_EQ(message.find("PW"), std::string::npos) << message;
  }
}

TEST(Secret, IsFoundWhereItsNameSays) {
  setenv("TENSORIZER_TEST_SECRET", "a b", 1);
  EXPECT_EQ(resolve_secret("env:TENSORIZER_TEST_SECRET"), "a b");
  EXPECT_EQ(resolve_secret("literal"), "literal");
  unsetenv("TENSORIZER_TEST_SECRET");
  EXPECT_THROW(resolve_secret("env:TENSORIZER_TEST_SECRET"), Error);
  EXPECT_THROW(resolve_secret("file:/nowhere/at/all"), Error);
  const Folder folder(testing::TempDir());
  write_file(folder / "secret", "a b\r\nsecond line");
  EXPECT_EQ(resolve_secret("file:" + (folder / "secret").string()), "a b");
}

TEST(HttpSink, HasToKnowTheSizeFirst) {
  Cancel cancel;
  const auto sink = open_sink("http://localhost:1/f", {}, cancel);
  EXPECT_TRUE(sink->sequential());
  EXPECT_EQ(testing_support::kind_of([&] { sink->begin(0, std::nullopt); }),
            ErrorKind::InvalidArgument);
  sink->begin(0, 5);
}

}  // namespace
}  // namespace tensorizer
