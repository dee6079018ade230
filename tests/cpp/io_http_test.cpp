// What is made of the words of web servers, and of URLs that hold secrets.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"
#include "io/http_answer.h"
#include "io/secret.h"

namespace tensorizer {
namespace {

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

TEST(HttpAnswer, TakesStrongTagsOnly) {
  EXPECT_EQ(answer_of("ETag: \"a b\"\r\n").object.etag, "\"a b\"");
  EXPECT_EQ(answer_of("ETag: W/\"a\"").object.etag, "");
  EXPECT_EQ(answer_of("Last-Modified: now").object.last_modified, "now");
}

TEST(HttpAnswer, KnowsTheRest) {
  EXPECT_TRUE(answer_of("Content-Encoding: gzip").encoded);
  EXPECT_FALSE(answer_of("Content-Encoding: identity").encoded);
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

TEST(Secret, IsTakenOutOfAUrl) {
  EXPECT_EQ(without_secrets("https://me:pass@host:8/a/b?sig=x#y"), "https://host:8/a/b?...");
  EXPECT_EQ(without_secrets("https://a@b@host/x"), "https://host/x");
  EXPECT_EQ(without_secrets("https://host?sig=me@x/y"), "https://host?...");
  EXPECT_EQ(without_secrets("https://host/a@b"), "https://host/a@b");
  EXPECT_EQ(without_secrets("file:///a?b@c"), "file:///a?b@c");
  EXPECT_EQ(without_secrets("/a?b"), "/a?b");
  for (const char* uri : {"https://u@h/x", "https://h/x?y", "redis://:p@h"}) {
    EXPECT_TRUE(holds_secret(uri)) << uri;
  }
  for (const char* uri : {"https://h/x@y", "https://h/x#y", "file:///x?y", "x?y@z", "fd:3"}) {
    EXPECT_FALSE(holds_secret(uri)) << uri;
  }
}

TEST(Secret, IsFoundWhereItsNameSays) {
  setenv("TENSORIZER_TEST_SECRET", "a b", 1);
  EXPECT_EQ(resolve_secret("env:TENSORIZER_TEST_SECRET"), "a b");
  EXPECT_EQ(resolve_secret("literal"), "literal");
  unsetenv("TENSORIZER_TEST_SECRET");
  EXPECT_THROW(resolve_secret("env:TENSORIZER_TEST_SECRET"), Error);
  EXPECT_THROW(resolve_secret("file:/nowhere/at/all"), Error);
}

}  // namespace
}  // namespace tensorizer
