// What a URI of a file in Redis names, and which keys make up a file.
#include <gtest/gtest.h>

#include "base/error.h"
#include "io/redis/address.h"
#include "io/redis/keys.h"
#include "io/redis/reply.h"
#include "io/retry.h"

namespace tensorizer {
namespace {

RedisAddress address_of(const std::string& uri, const RedisOptions& options = {}) {
  return redis_address(uri, options);
}

ErrorKind kind_of(auto&& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorKind::Internal;
}

TEST(RedisAddress, HasEveryPart) {
  const RedisAddress address = address_of("redis://me:a%3ab@host:1234//0/p x:%41*");
  EXPECT_EQ(address.url, "http://host:1234/");
  EXPECT_EQ(address.user, "me");
  EXPECT_EQ(address.password, "a:b");
  EXPECT_EQ(address.prefix, "0/p x:%41*");
  EXPECT_EQ(address.label, "'redis://host:1234//0/p x:%41*'");
}

TEST(RedisAddress, HasDefaults) {
  const RedisAddress address = address_of("REDIS://[::1]/p");
  EXPECT_EQ(address.url, "http://[::1]:6379/");
  EXPECT_EQ(address.password, "");
  EXPECT_EQ(address_of("redis://[fe80::1%25eth0]:7/p").url, "http://[fe80::1%25eth0]:7/");
  EXPECT_EQ(address_of("redis://h:80/p").url, "http://h:80/");
  EXPECT_EQ(address_of("redis://:word@h/p").password, "word");
  EXPECT_EQ(address_of("redis://a@b:x@h/p").user, "a@b");
}

TEST(RedisAddress, IsOfTlsOrNot) {
  EXPECT_FALSE(address_of("redis://h/p").tls);
  const RedisAddress address = address_of("rediss://me:word@h/p");
  EXPECT_TRUE(address.tls);
  EXPECT_EQ(address.url, "https://h:6379/");
  EXPECT_EQ(address.label, "'rediss://h/p'");
  // A scheme that the table knows and this parser does not must not go without TLS.
  EXPECT_EQ(kind_of([] { address_of("redisx://h/p"); }), ErrorKind::InvalidArgument);
}

TEST(RedisAddress, IsOfASocket) {
  const RedisAddress address =
      address_of("unix://me:a%2fb@/run/a%20b@c.sock?prefix=p%26%3aq%2b+/&db=7");
  EXPECT_EQ(address.socket, "/run/a b@c.sock");
  EXPECT_EQ(address.user, "me");
  EXPECT_EQ(address.password, "a/b");
  EXPECT_EQ(address.prefix, "p&:q++/");
  EXPECT_EQ(address.database, 7);
  EXPECT_FALSE(address.tls);
  EXPECT_EQ(address.label, "'unix:///run/a%20b@c.sock?prefix=p%26%3aq%2b+/&db=7'");
  EXPECT_EQ(address_of("UNIX:///s?prefix=p").password, "");
  RedisOptions options;
  options.database = 0;
  EXPECT_EQ(address_of("unix:///s?prefix=p&db=7", options).database, 0);
}

TEST(RedisAddress, OptionsComeFirst) {
  RedisOptions options;
  options.user = "other";
  options.password = "another";
  options.database = 3;
  const RedisAddress address = address_of("redis://me:word@h/p", options);
  EXPECT_EQ(address.user, "other");
  EXPECT_EQ(address.password, "another");
  EXPECT_EQ(address.database, 3);
}

TEST(RedisAddress, RefusesNonsense) {
  for (const char* uri : {"redis://",
                          "redis://h",
                          "redis://h/",
                          "redis:///p",
                          "redis://h:/p",
                          "redis://h:0/p",
                          "redis://h:65536/p",
                          "redis://h:7x/p",
                          "redis://h:7@/p",
                          "redis://a b/p",
                          "redis://a\\b/p",
                          "redis://[::1/p",
                          "redis://[::1]7/p",
                          "redis://h/p?q",
                          "redis://h/p#q",
                          "redis://%4:x@h/p",
                          "redis://me@h/p",
                          "redis://me:@h/p",
                          "rediss://h",
                          "unix:///s",
                          "unix:///s?db=1",
                          "unix:///?prefix=p",
                          "unix:///s/?prefix=p",
                          "unix://h/s?prefix=p",
                          "unix:///s?prefix=p&x=y",
                          "unix:///s?prefix=p#q",
                          "unix:///s?prefix=p&prefix=q",
                          "unix:///s?prefix=p&db=",
                          "unix:///s?prefix=p&db=1&db=1",
                          "unix:///%00?prefix=p",
                          "unix:///s?prefix=%00",
                          "unix:///%4?prefix=p"}) {
    EXPECT_EQ(kind_of([&] { address_of(uri); }), ErrorKind::InvalidArgument) << uri;
  }
}

TEST(RedisPattern, MatchesOnlyItself) {
  EXPECT_EQ(redis_pattern("plain:é-^"), "plain:é-^");
  EXPECT_EQ(redis_pattern("a*b?c[d]e\\f"), "a\\*b\\?c\\[d\\]e\\\\f");
}

std::vector<std::string> names_of(const RedisListing& listing) {
  std::vector<std::string> names;
  for (const RedisKey& key : listing.keys) names.push_back(key.name);
  return names;
}

TEST(RedisKeys, AreThoseOfTheFile) {
  const RedisListing listing = sort_redis_keys(
      "p", {"p:b:20", "p:header:0", "p:a:9", "p:b:20", "p", "p:5", "p:", "p:a:", "p:a:-1", "p:a:x",
            "p:a:+1", "q:a:9", "pp:a:9", "p:c:d:100", "p:a:99999999999999999999", "p:header:x"});
  EXPECT_EQ(names_of(listing),
            (std::vector<std::string>{"p:header:0", "p:a:9", "p:b:20", "p:c:d:100"}));
  EXPECT_TRUE(listing.inner.empty());
}

TEST(RedisKeys, AreNotThoseOfALongerPrefix) {
  const std::vector<std::string> names{
      "p:header:0", "p:x:header:0", "p:x:a:10",       "p:x:10",    "p:x!:header:0",
      "p:x!:a:10",  "p:xx:10",      "p:y:z:header:0", "p:y:a:10",  "p:y:z:a:10",
      "p:x:v:b:10", "p:y:z:10",     "p:x:w:header:0", "p:y:z!:10", "p:x:w:a:10"};
  EXPECT_EQ(names_of(sort_redis_keys("p", names)),
            (std::vector<std::string>{"p:header:0", "p:x:10", "p:xx:10", "p:y:a:10", "p:y:z!:10",
                                      "p:y:z:10"}));
  EXPECT_EQ(names_of(sort_redis_keys("p:x", names)),
            (std::vector<std::string>{"p:x:header:0", "p:x:a:10", "p:x:v:b:10"}));
}

// A comparison for each colon would take minutes.
TEST(RedisKeys, MayHaveManyColons) {
  std::string longer = "p:";
  for (int i = 0; i < 1 << 21; ++i) longer += "a:";
  EXPECT_EQ(names_of(sort_redis_keys(
                "p", {"p:header:0", longer + "x:header:0", longer + "x:a:5", longer + "y:7"})),
            (std::vector<std::string>{"p:header:0", longer + "y:7"}));
}

RedisAddress place() { return address_of("redis://h/p"); }

std::vector<RedisKey> file() {
  return {{"p:header:0", 0, 10}, {"p:a:10", 10, 5}, {"p:e:15", 15, 0}, {"p:a:15", 15, 7}};
}

TEST(RedisKeys, MakeUpAFile) {
  std::vector<RedisKey> keys = file();
  check_redis_keys(keys, place());
  ASSERT_EQ(keys.size(), 3U);
  EXPECT_EQ(keys.back().end(), 22U);
}

TEST(RedisKeys, HaveNoGapAndDoNotOverlap) {
  const auto kind_with = [](auto&& change) {
    std::vector<RedisKey> keys = file();
    change(keys);
    return kind_of([&] { check_redis_keys(keys, place()); });
  };
  using Keys = std::vector<RedisKey>;
  EXPECT_EQ(kind_with([](Keys& keys) { keys.clear(); }), ErrorKind::NotFound);
  for (const std::size_t missing : {0, 1}) {
    EXPECT_EQ(kind_with([&](Keys& keys) { keys[missing].size = 0; }), ErrorKind::InvalidFormat);
  }
  EXPECT_EQ(kind_with([](Keys& keys) { ++keys[1].size; }), ErrorKind::InvalidFormat);
  EXPECT_EQ(kind_with([](Keys& keys) { --keys[1].size; }), ErrorKind::InvalidFormat);
  EXPECT_EQ(kind_with([](Keys& keys) { keys[2].size = 7; }), ErrorKind::InvalidFormat);
  EXPECT_EQ(kind_with([](Keys& keys) { keys[3].size = ~std::uint64_t{0}; }),
            ErrorKind::InvalidFormat);
  EXPECT_EQ(kind_with([](Keys& keys) { keys[0].name = "p:a:0"; }), ErrorKind::InvalidFormat);
}

TEST(RedisKeys, OfNoFileMayHaveGapsAndDoNotOverlap) {
  std::vector<RedisKey> keys{{"p:a:5", 5, 5}, {"p:e:7", 7, 0}, {"p:b:100", 100, 7}};
  check_redis_keys(keys, place(), true);
  EXPECT_EQ(keys.size(), 2U);
  keys[0].size = 96;
  EXPECT_EQ(kind_of([&] { check_redis_keys(keys, place(), true); }), ErrorKind::InvalidFormat);
  keys = {{"p:a:9999999999999999999", 9999999999999999999U, 1}};
  EXPECT_EQ(kind_of([&] { check_redis_keys(keys, place(), true); }), ErrorKind::InvalidFormat);
}

TEST(RedisKeys, AreQuotedWithoutThePassword) {
  const RedisAddress address = address_of("redis://:sesame42@h/p");
  for (std::vector<RedisKey> keys :
       {std::vector<RedisKey>{{"p:sesame42:0", 0, 4}},
        std::vector<RedisKey>{{"p:header:0", 0, 4}, {"p:sesame42:3", 3, 4}}}) {
    try {
      check_redis_keys(keys, address);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(std::string_view(error.what()).find("sesame42"), std::string_view::npos)
          << error.what();
    }
  }
}

TEST(RedisReply, ErrorsHaveTheirKinds) {
  const auto kind_with = [](std::string_view text) {
    return kind_of([&] { throw_redis_error(text, "'x'"); });
  };
  EXPECT_EQ(kind_with("NOAUTH Authentication required."), ErrorKind::PermissionDenied);
  EXPECT_EQ(kind_with("NOPERM no"), ErrorKind::PermissionDenied);
  EXPECT_EQ(kind_with("OOM command not allowed"), ErrorKind::OutOfSpace);
  EXPECT_EQ(kind_with("BUSY"), ErrorKind::Unavailable);
  EXPECT_EQ(kind_with("BUSYKEY x"), ErrorKind::Unavailable);
  EXPECT_EQ(kind_with("MOVED 1 h:1"), ErrorKind::InvalidArgument);
  EXPECT_EQ(kind_with(""), ErrorKind::Unavailable);
  EXPECT_THROW(throw_redis_error("LOADING x", "'x'"), TemporaryError);
  EXPECT_THROW(
      throw_redis_error("EXECABORT Transaction discarded because of: BUSY Redis is busy", "'x'"),
      TemporaryError);
  EXPECT_EQ(kind_with("EXECABORT Transaction discarded because of: OOM no"), ErrorKind::OutOfSpace);
  EXPECT_THROW(throw_login_error("LOADING x", "'x'"), TemporaryError);
  EXPECT_EQ(kind_of([] { throw_login_error("ERR unknown command 'AUTH', 'word'", "'x'"); }),
            ErrorKind::PermissionDenied);
  try {
    throw_login_error("ERR unknown command 'AUTH', 'word'", "'x'");
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find("word'"), std::string::npos);
  }
}

}  // namespace
}  // namespace tensorizer
