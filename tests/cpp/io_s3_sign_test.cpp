// Signatures that AWS has published: from its test suite for Signature Version 4, and from the
// examples in S3's manual.
#include <gtest/gtest.h>

#include "codec/hmac.h"
#include "io/aws/sign.h"

namespace tensorizer {
namespace {

std::string signature_of(const std::string& authorization) {
  return authorization.substr(authorization.rfind('=') + 1);
}

constexpr std::string_view kSuiteId = "AKIDEXAMPLE";
constexpr std::string_view kSuiteSecret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
constexpr std::string_view kManualId = "AKIAIOSFODNN7EXAMPLE";
constexpr std::string_view kManualSecret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";

const std::string kNothing = to_hex(sha256({}));

// 2015-08-30 12:36:00
std::string suite(SignedRequest request) {
  request.headers.insert(request.headers.begin(), {"Host", "example.amazonaws.com"});
  request.headers.emplace_back("X-Amz-Date", "20150830T123600Z");
  if (request.payload_hash.empty()) request.payload_hash = kNothing;
  return signature_of(
      authorization(request, {"us-east-1", "service", 1440938160}, kSuiteId, kSuiteSecret));
}

// 2013-05-24
std::string manual(SignedRequest request) {
  request.headers.emplace_back("Host", "examplebucket.s3.amazonaws.com");
  request.headers.emplace_back("x-amz-content-sha256", request.payload_hash);
  request.headers.emplace_back("x-amz-date", "20130524T000000Z");
  return signature_of(
      authorization(request, {"us-east-1", "s3", 1369353600}, kManualId, kManualSecret));
}

TEST(Sign, AgreesWithTheTestSuite) {
  EXPECT_EQ(suite({"GET", "/", {}, {}, {}}),
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
  EXPECT_EQ(suite({"GET", "/", {{"Param2", "value2"}, {"Param1", "value1"}}, {}, {}}),
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500");
  EXPECT_EQ(suite({"POST", "/", {}, {}, {}}),
            "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b");
  EXPECT_EQ(suite({"GET", "/%E1%88%B4", {}, {}, {}}),
            "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85");
  EXPECT_EQ(
      suite({"GET", "/", {}, {{"My-Header1", " value1"}, {"My-Header2", " \"a   b   c\""}}, {}}),
      "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736");
  EXPECT_EQ(suite({"POST",
                   "/",
                   {},
                   {{"Content-Type", "application/x-www-form-urlencoded"}},
                   to_hex(sha256(as_bytes("Param1=value1")))}),
            "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a");
}

TEST(Sign, AgreesWithTheManual) {
  EXPECT_EQ(manual({"GET", "/test.txt", {}, {{"Range", "bytes=0-9"}}, kNothing}),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  EXPECT_EQ(manual({"PUT",
                    "/" + escape_uri("test$file.text", true),
                    {},
                    {{"Date", "Fri, 24 May 2013 00:00:00 GMT"},
                     {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                    to_hex(sha256(as_bytes("Welcome to Amazon S3.")))}),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
  EXPECT_EQ(manual({"GET", "/", {{"lifecycle", ""}}, {}, kNothing}),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  EXPECT_EQ(manual({"GET", "/", {{"max-keys", "2"}, {"prefix", "J"}}, {}, kNothing}),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

// From the manual's page on Signature Version 2.
TEST(Sign, AgreesWithTheManualOnUrls) {
  const SignedRequest request{"GET", "/johnsmith/photos/puppy.jpg", {}, {}, {}};
  EXPECT_EQ(signed_parameters(request, 1175139620, kManualId, kManualSecret, ""),
            "AWSAccessKeyId=AKIAIOSFODNN7EXAMPLE&Signature=NpgCjnDzrM%2BWFzoENXmpNDUsSn8%3D"
            "&Expires=1175139620");
}

TEST(Sign, UrlsHoldUntilTheSecondMidnight) {
  EXPECT_EQ(last_moment(0), 2 * 86400);
  EXPECT_EQ(last_moment(86399), 2 * 86400);
  EXPECT_EQ(last_moment(86400), 3 * 86400);
}

TEST(Hmac, AgreesWithRfc2202) {
  EXPECT_EQ(to_hex(hmac_sha1(as_bytes("Jefe"), as_bytes("what do ya want for nothing?"))),
            "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79");
}

TEST(Sign, EscapesEveryByteThatIsNotPlain) {
  EXPECT_EQ(escape_uri("a b+c%d=e/f~\xC3\xBC", true), "a%20b%2Bc%25d%3De/f~%C3%BC");
  EXPECT_EQ(escape_uri("/", false), "%2F");
  EXPECT_EQ(escape_query({{"b", "1"}, {"a", "x y"}, {"a", ""}}), "a=&a=x%20y&b=1");
}

TEST(Hmac, AgreesWithRfc4231) {
  const std::string long_key(131, '\xAA');
  EXPECT_EQ(to_hex(hmac(as_bytes("Jefe"), as_bytes("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(to_hex(hmac(as_bytes(long_key),
                        as_bytes("Test Using Larger Than Block-Size Key - Hash Key First"))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

}  // namespace
}  // namespace tensorizer
