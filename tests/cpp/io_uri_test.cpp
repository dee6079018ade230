// URIs: what they name, and which are refused.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "base/error.h"
#include "io/descriptor.h"
#include "io/places/open.h"
#include "io/sink.h"
#include "io/source.h"
#include "io/uri.h"
#include "io_support.h"

namespace tensorizer {
namespace {

using namespace testing_support;

TEST(UriTest, SplitsOnlyALeadingScheme) {
  EXPECT_EQ(split_uri("FILE:///x").scheme, "file");
  EXPECT_EQ(split_uri("s3+v.2-a://b//c").scheme, "s3+v.2-a");
  EXPECT_EQ(split_uri("s3://b//c").rest, "b//c");
  EXPECT_EQ(split_uri("fd:12").rest, "12");
  for (const char* path :
       {"a:b", "C:/x", "./a://b", "a b://c", "1a://b", "://x", "/a//b:c", "fd", "FD:1"}) {
    EXPECT_EQ(split_uri(path).scheme, "") << path;
    EXPECT_EQ(split_uri(path).rest, path);
  }
  EXPECT_EQ(kind_of([] { split_uri(""); }), ErrorKind::InvalidArgument);
  for (const std::string_view uri :
       {std::string_view("a\0b", 3), std::string_view("file:///\0", 9)}) {
    EXPECT_EQ(kind_of([&] { split_uri(uri); }), ErrorKind::InvalidArgument);
  }
  EXPECT_EQ(
      message_of([] { split_uri(std::string_view("s3://user:secret@h/\0", 20)); }).find("secret"),
      std::string::npos);
}

TEST(UriTest, EndsPathsAtParametersOfUrlsOnly) {
  for (const char* uri : {"https://h/a?b#c", "HTTP://h/a#c?b", "redis://h/a?b",
                          "unix:///a?prefix=b", "other://h/a?b"}) {
    EXPECT_EQ(std::string(uri).substr(path_end(uri)).find_first_of("?#"), 0) << uri;
  }
  for (const char* uri : {"", "a?b#c", "a b://c?d", "file:///a?b#c", "s3://b/a?b#c", "GS://b/a#c",
                          "az://a/c/k?#", "hf://o/m@r/a?b", "fd:3"}) {
    EXPECT_EQ(path_end(uri), std::string_view(uri).size()) << uri;
  }
}

TEST(UriTest, TakesNoBrokenUrlForAPath) {
  for (const char* uri :
       {"http:/u:secret@h/x", "HTTPS:u:secret@h", " http://u:secret@h/x", "http:", "s3:/b/k",
        "gs:secret/k", "redis:/:secret@h/p", "rediss:secret", "unix:/s?password=secret",
        " s3://secret/k", "file:/x", "http:/h/x?X-Amz-Signature=secret", "\x01redis://:secret@h/p",
        "\xef\xbb\xbfredis://:secret@h/p", "'redis://:secret@h/p'", "redis ://:secret@h/p",
        "red\xffis://:secret@h", " other://u:secret@h", "other ://secret"}) {
    const Error error = error_of([&] { is_uri(uri); });
    EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument) << uri;
    EXPECT_EQ(std::string_view(error.what()).find("secret"), std::string_view::npos) << uri;
  }
  // Behind a NUL, too.
  const std::string hidden("\0redis://:secret@h/p", 20);
  EXPECT_EQ(message_of([&] { is_local(hidden); }).find("secret"), std::string::npos);
  for (const char* path : {"./http:x", "http-model", "s3-model:1", "fds:1", " fd:1", "a/ s3://b",
                           "/ s3://b", "h_ttp:x"}) {
    EXPECT_FALSE(is_uri(path)) << path;
    EXPECT_TRUE(is_local(path)) << path;
  }
  EXPECT_TRUE(is_uri("S3://b/k"));
  EXPECT_TRUE(is_uri("fd:1"));
}

TEST(UriTest, DecodesFileUris) {
  EXPECT_EQ(decode_file_uri("/a%20b/%e4%F6?x#y"), "/a b/\xe4\xf6?x#y");
  EXPECT_EQ(decode_file_uri("LocalHost/x"), "/x");
  for (const char* rest : {"", "host/x", "x", "localhost", "user:secret@localhost/x", "/%", "/%4",
                           "/%4g", "/%g4", "/a%00b"}) {
    const Error error = error_of([&] { decode_file_uri(rest); });
    EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument) << rest;
    EXPECT_EQ(std::string_view(error.what()).find("secret"), std::string_view::npos);
  }
}

TEST(UriTest, ExpandsHomes) {
  const char* home = std::getenv("HOME");
  const std::string before = home == nullptr ? "" : home;
  setenv("HOME", "/some/home", 1);
  EXPECT_EQ(expand_home("~"), "/some/home");
  EXPECT_EQ(expand_home("~/a/~"), "/some/home/a/~");
  EXPECT_EQ(expand_home("a/~"), "a/~");
  EXPECT_EQ(expand_home("~root/x"), "/root/x");
  EXPECT_EQ(expand_home("~nobody-has-this-name/x"), "~nobody-has-this-name/x");
  unsetenv("HOME");
  EXPECT_NE(expand_home("~/x"), "~/x");
  if (home != nullptr) setenv("HOME", before.c_str(), 1);
}

TEST(UriTest, ParsesDescriptors) {
  EXPECT_EQ(parse_descriptor("07"), 7);
  for (const char* rest : {"", "-1", "+1", "1x", " 1", "99999999999", "x"}) {
    EXPECT_EQ(kind_of([&] { parse_descriptor(rest); }), ErrorKind::InvalidArgument) << rest;
  }
  EXPECT_EQ(descriptor_alias("/dev/stdin"), 0);
  EXPECT_EQ(descriptor_alias("/dev/fd/5"), 5);
  EXPECT_EQ(descriptor_alias("/proc/self/fd/12"), 12);
  for (const char* path : {"/dev/fd/", "/dev/fd/x", "/dev/fd/-1", "/dev/full", "/dev/fd/1/x"}) {
    EXPECT_EQ(descriptor_alias(path), -1) << path;
  }
}

TEST_F(IoTest, KnowsTheNamesOfFiles) {
  EXPECT_EQ(file_name_of("a/b.safetensors"), "b.safetensors");
  EXPECT_EQ(file_name_of("s3://bucket/a/b"), "b");
  for (const std::string uri :
       {"none/", "s3://bucket/a/", "/dev/null", "fd:3", "/", "redis://h/p"}) {
    EXPECT_FALSE(file_name_of(uri)) << uri;
  }
}

TEST_F(IoTest, UnknownSchemesListTheKnownOnesAndNoSecret) {
  for (const std::function<void()>& open :
       {std::function<void()>([&] { source("ftp://user:secret@host/x"); }),
        std::function<void()>([&] { sink("ftp://user:secret@host/x"); })}) {
    const Error error = error_of(open);
    const std::string message = error.what();
    EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
    EXPECT_NE(message.find("'ftp'"), std::string::npos);
    EXPECT_NE(message.find("file://"), std::string::npos);
    EXPECT_EQ(message.find("secret"), std::string::npos);
  }
}

}  // namespace
}  // namespace tensorizer
