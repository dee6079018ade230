// Requests for objects: their URLs, their headers, and what is learned from refusals.
#include <gtest/gtest.h>

#include <thread>

#include "aws_home.h"
#include "base/error.h"
#include "io/s3/open.h"
#include "tensorizer_ops/hooks.h"

namespace tensorizer {
namespace {

// The settings of this machine have no effect.
class S3Endpoint : public testing_support::AwsHome {
 protected:
  S3Endpoint() {
    s3_.access_key_id = "AKIA";
    s3_.secret_access_key = "secret";
  }

  HttpRequest request(const std::string& method = "GET", const std::string& uri = "bucket/a key") {
    if (!place_) place_ = s3_endpoint(scheme_, parse_s3_name(scheme_, uri), s3_, http_);
    HttpRequest request;
    request.method = method;
    Cancel cancel;
    place_->complete(request, cancel);
    return request;
  }

  static std::string header(const HttpRequest& request, const std::string& name) {
    for (const std::string& line : request.headers) {
      if (line.starts_with(name + ": ")) return line.substr(name.size() + 2);
    }
    return "";
  }

  HttpRefusal refuse(const HttpRequest& request, int status, const std::string& code,
                     const std::string& head = "") {
    HttpOutcome outcome;
    outcome.answer.status = status;
    if (!head.empty()) outcome.answer.take_header(head);
    outcome.answer.refusal = "<?xml version=\"1.0\"?><Error><Code>" + code +
                             "</Code><Message>some words</Message></Error>";
    return place_->learn(request, outcome);
  }

  std::string scheme_ = "s3";
  S3Options s3_;
  HttpOptions http_;
  std::unique_ptr<HttpEndpoint> place_;
};

TEST_F(S3Endpoint, IsInItsRegion) {
  s3_.region = "eu-north-1";
  const HttpRequest asked = request();
  EXPECT_EQ(asked.url, "https://bucket.s3.eu-north-1.amazonaws.com/a%20key");
  EXPECT_NE(header(asked, "Authorization").find("/eu-north-1/s3/aws4_request"), std::string::npos);
  EXPECT_FALSE(asked.follow_redirects);
  EXPECT_FALSE(asked.log_in);
  EXPECT_TRUE(asked.path_as_is) << "a key may have dots between its slashes";
  EXPECT_EQ(place_->label(), "'s3://bucket/a key'");
}

TEST_F(S3Endpoint, MayBeAFolderOfTheHost) {
  EXPECT_EQ(request("GET", "a.bucket/x").url, "https://s3.us-east-1.amazonaws.com/a.bucket/x");
  place_.reset();
  s3_.addressing = "path";
  EXPECT_EQ(request().url, "https://s3.us-east-1.amazonaws.com/bucket/a%20key");
}

TEST_F(S3Endpoint, MayBeSomewhereElse) {
  s3_.endpoint = "minio.example:9000/base/";
  EXPECT_EQ(request().url, "https://minio.example:9000/base/bucket/a%20key");
  place_.reset();
  s3_.force_http = true;
  EXPECT_EQ(request().url, "http://minio.example:9000/base/bucket/a%20key");
  place_.reset();
  s3_.endpoint = "accel-object.lga1.cwobject.com";
  EXPECT_EQ(request().url, "http://bucket.accel-object.lga1.cwobject.com/a%20key");
  place_.reset();
  s3_.endpoint = "https://minio.example";
  s3_.addressing = "virtual";
  EXPECT_EQ(request().url, "http://bucket.minio.example/a%20key");
  place_.reset();
  s3_.force_http = false;
  EXPECT_EQ(request().url, "https://bucket.minio.example/a%20key");
}

TEST_F(S3Endpoint, IsGoogles) {
  scheme_ = "gs";
  const HttpRequest asked = request();
  EXPECT_EQ(asked.url, "https://storage.googleapis.com/bucket/a%20key");
  EXPECT_NE(header(asked, "Authorization").find("/auto/s3/"), std::string::npos);
  EXPECT_EQ(place_->label(), "'gs://bucket/a key'");
}

TEST_F(S3Endpoint, IsNotReachedByNonsense) {
  for (const char* endpoint : {"http://minio", "ftp://x", "https://", "https:///x", "https://a b",
                               "https://user:pass@x", "https://x?y"}) {
    s3_.endpoint = endpoint;
    place_.reset();
    try {
      request();
      ADD_FAILURE() << endpoint;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument) << endpoint;
      EXPECT_EQ(std::string(error.what()).find("pass"), std::string::npos);
    }
  }
}

TEST_F(S3Endpoint, SignsWhatIsParticular) {
  s3_.session_token = "a token";
  s3_.requester_pays = true;
  s3_.version_id = "v1";
  http_.headers = {{"X-Amz-Of-My-Own", "1"}, {"X-Other", "2"}};
  s3_.sse_customer_key = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
  const HttpRequest asked = request();
  EXPECT_TRUE(asked.url.ends_with("/a%20key?versionId=v1")) << asked.url;
  EXPECT_NE(header(asked, "Authorization")
                .find("SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-of-my-own;"
                      "x-amz-request-payer;x-amz-security-token;"
                      "x-amz-server-side-encryption-customer-algorithm;"
                      "x-amz-server-side-encryption-customer-key;"
                      "x-amz-server-side-encryption-customer-key-md5,"),
            std::string::npos)
      << header(asked, "Authorization");
  EXPECT_EQ(header(asked, "X-Other"), "2");
  // md5("01234567890123456789012345678901"), by md5sum and base64.
  EXPECT_EQ(header(asked, "x-amz-server-side-encryption-customer-key-MD5"),
            "KYvwGXoFFJ42a2u2GDWhwQ==");
  // The request that completes an upload sends the key, as those for its parts do.
  EXPECT_EQ(header(request("POST"), "x-amz-server-side-encryption-customer-key"),
            s3_.sse_customer_key);
  EXPECT_EQ(header(request("DELETE"), "x-amz-server-side-encryption-customer-key"), "");

  place_.reset();
  for (const char* wrong : {"short", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MA==",
                            "####MzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="}) {
    s3_.sse_customer_key = wrong;
    EXPECT_THROW(request(), Error) << wrong;
  }
}

TEST_F(S3Endpoint, IsAskedByNobody) {
  s3_ = {};
  s3_.anonymous = true;
  EXPECT_EQ(request().headers, std::vector<std::string>());
}

TEST_F(S3Endpoint, LearnsItsRegion) {
  const HttpRequest asked = request();
  EXPECT_TRUE(refuse(asked, 301, "PermanentRedirect", "x-amz-bucket-region: eu-west-1").recovered);
  EXPECT_EQ(request().url, "https://bucket.s3.eu-west-1.amazonaws.com/a%20key");
  EXPECT_FALSE(refuse(asked, 301, "PermanentRedirect", "x-amz-bucket-region: eu-west-1").recovered);
  EXPECT_FALSE(
      refuse(asked, 301, "PermanentRedirect", "x-amz-bucket-region: a.evil/host#").recovered);
  EXPECT_TRUE(
      refuse(asked, 400, "AuthorizationHeaderMalformed</Code><Region>eu-west-2</Region><Code>")
          .recovered);
  EXPECT_EQ(request().url, "https://bucket.s3.eu-west-2.amazonaws.com/a%20key");
}

TEST_F(S3Endpoint, LearnsTheTime) {
  const HttpRequest asked = request();
  EXPECT_TRUE(
      refuse(asked, 403, "RequestTimeTooSkewed", "Date: Fri, 24 May 2097 00:00:00 GMT").recovered);
  EXPECT_TRUE(header(request(), "x-amz-date").starts_with("20970524T0000"));
  // A request that was in flight at the same time recovers as well.
  EXPECT_TRUE(
      refuse(asked, 403, "RequestTimeTooSkewed", "Date: Fri, 24 May 2097 00:00:01 GMT").recovered);
  EXPECT_FALSE(refuse(asked, 403, "RequestTimeTooSkewed", "Date: soon").recovered);
}

TEST_F(S3Endpoint, SaysWhatTheServerSays) {
  const HttpRequest asked = request();
  const HttpRefusal denied = refuse(asked, 403, "AccessDenied");
  EXPECT_EQ(denied.what, "AccessDenied: some words");
  EXPECT_FALSE(denied.recovered || denied.temporary);
  EXPECT_TRUE(refuse(asked, 400, "RequestTimeout").temporary);
  EXPECT_TRUE(refuse(asked, 503, "SlowDown").temporary);
  // These keys come from the options, and there are no others.
  EXPECT_FALSE(refuse(asked, 400, "ExpiredToken").recovered);
  EXPECT_EQ(refuse(asked, 400, "ExpiredToken").kind, ErrorKind::PermissionDenied);
}

TEST(S3Name, IsABucketAndAKey) {
  const S3Name name = parse_s3_name("s3", "bucket/a/b?c#d%20");
  EXPECT_EQ(name.bucket, "bucket");
  EXPECT_EQ(name.key, "a/b?c#d%20");
  for (const char* wrong : {"", "bucket", "bucket/", "/key", "/"}) {
    EXPECT_THROW(parse_s3_name("s3", wrong), Error) << wrong;
  }
  try {
    parse_s3_name("gs", "bucket");
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "'gs://bucket' names no object: write gs://BUCKET/KEY");
  }
  try {
    parse_s3_name("s3", "key:pass@bucket/key");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(
        error.message(),
        "'s3://bucket/key' was given with a user or a password, which s3:// does not support: "
        "use the options 's3_access_key_id' and 's3_secret_access_key'");
  }
}

// As in a signal handler that loads while its own thread reads the settings.
TEST_F(S3Endpoint, IsFoundByWhoInterruptsTheSearch) {
  static int calls;
  static int interrupts;
  static HttpEndpoint* place;
  static std::string found;
  config("[default]\nregion = eu-north-1\n");
  const auto ask = [&] {
    place_.reset();
    calls = 0;
    set_interrupt_hook([] {
      std::this_thread::sleep_for(kPollInterval);  // so that the next check calls this hook, too
      if (++calls != interrupts) return;
      HttpRequest request;
      request.method = "GET";
      Cancel cancel;
      place->complete(request, cancel);
      found = request.url;
    });
    place_ = s3_endpoint("s3", parse_s3_name("s3", "bucket/a key"), s3_, http_);
    place = place_.get();
    const std::string url = request().url;
    set_interrupt_hook(nullptr);
    return url;
  };
  interrupts = 0;
  const std::string url = ask();
  EXPECT_EQ(url, "https://bucket.s3.eu-north-1.amazonaws.com/a%20key");
  interrupts = calls;  // the last call, which comes after the keys
  EXPECT_EQ(ask(), url);
  EXPECT_EQ(found, url);
}

}  // namespace
}  // namespace tensorizer
