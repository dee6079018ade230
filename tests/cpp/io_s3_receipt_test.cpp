// Which responses confirm that S3 has stored something.
#include <gtest/gtest.h>

#include "io/s3/receipt.h"

namespace tensorizer {
namespace {

constexpr std::string_view kPage = "\n <!DOCTYPE html><html><body>Log in</body></html>";

HttpAnswer answer_of(int status, const std::string& headers = "") {
  HttpAnswer answer;
  answer.status = status;
  for (std::size_t at = 0; at < headers.size();) {
    const std::size_t end = headers.find('\n', at);
    answer.take_header(headers.substr(at, end - at));
    at = end + 1;
  }
  return answer;
}

TEST(FaultOfAnswer, IsNoneOfWhatS3Says) {
  EXPECT_EQ(fault_of_answer(answer_of(200, "ETag: \"x\"\n"), "", ""), "");
  constexpr std::string_view kDone =
      "<?xml version=\"1.0\"?>\n  \n<s:Done xmlns:s='http://x/'><ETag>x</ETag></s:Done>";
  EXPECT_EQ(fault_of_answer(answer_of(200), kDone, "Done"), "");
  EXPECT_EQ(fault_of_answer(answer_of(200), "<DoneResult></DoneResult>\n", "Done"), "");
  const auto complete = [](const std::string& content) {
    const std::string root(kCompletion);
    return fault_of_answer(answer_of(200), "<" + root + ">" + content + "</" + root + ">", root);
  };
  EXPECT_EQ(complete("<ETag>\"x-2\"</ETag>"), "");
  EXPECT_NE(complete(""), "");
  EXPECT_NE(complete("<ETag></ETag>"), "");
  EXPECT_NE(complete("<Error><Code>InternalError</Code></Error>"), "");
}

TEST(FaultOfAnswer, SaysWhatStandsInForS3) {
  const auto fault = [](int status, std::string_view headers, std::string_view body,
                        std::string_view root) {
    return fault_of_answer(answer_of(status, std::string(headers)), body, root);
  };
  EXPECT_NE(fault(200, "ETag: x\n", kPage, "").find("an HTML page"), std::string::npos);
  EXPECT_NE(fault(200, "", kPage, "Done").find("an HTML page, instead of Done"), std::string::npos);
  EXPECT_NE(fault(200, "", "<html>secret</html>", "Done").find("an HTML page"), std::string::npos);
  EXPECT_EQ(fault(200, "", "<html>secret</html>", "Done").find("secret"), std::string::npos);
  EXPECT_NE(fault(200, "", "", ""), "") << "no ETag";
  EXPECT_NE(fault(204, "ETag: x\n", "", ""), "") << "not what S3 says to a PUT";
  EXPECT_NE(fault(200, "", "", "Done"), "");
  EXPECT_NE(fault(200, "", "<Other><Done/></Other>", "Done"), "");
  EXPECT_NE(fault(200, "", "done <Done/>", "Done"), "");
  EXPECT_NE(fault(204, "", "<Done/>", "Done"), "");
  EXPECT_NE(fault(200, "", "<DoneNot></DoneNot>", "Done"), "");
  EXPECT_NE(fault(200, "", "<Done><ETag>x</ETag>", "Done"), "") << "cut";
}

// Returns two parts, of the bytes "aaaaaaaaaa" and "bbbbb".
std::map<std::uint64_t, StoredPart> two_parts() {
  return {{1, {"\"e09c80c42fda55f9d992e59ca6b3307d\"", 0x4c11cdf0}},
          {2, {"a21075a36eeddd084e17611a238c7101", 0x0bdbfaa7}}};
}

TEST(ConsistsOf, ComparesTheETagThatFollowsFromThoseOfTheParts) {
  const std::string right = "ETag: \"94bfe67beece4111821a3daf596d366f-2\"\n";
  EXPECT_TRUE(consists_of(answer_of(200, right + "Content-Length: 15\n"), 15, two_parts()));
  EXPECT_FALSE(consists_of(answer_of(200, right + "Content-Length: 16\n"), 15, two_parts()));
  EXPECT_FALSE(consists_of(answer_of(200, right), 15, two_parts()));
  EXPECT_FALSE(consists_of(answer_of(404, right + "Content-Length: 15\n"), 15, two_parts()));
  const std::string other = "ETag: \"e09c80c42fda55f9d992e59ca6b3307d\"\nContent-Length: 15\n";
  EXPECT_FALSE(consists_of(answer_of(200, other), 15, two_parts()));
}

// ETags are not MD5s for some objects, such as encrypted ones.
TEST(ConsistsOf, ComparesTheChecksumThatFollowsFromThoseOfTheParts) {
  std::map<std::uint64_t, StoredPart> parts = two_parts();
  parts[1].etag = parts[2].etag = "opaque";
  const std::string size = "Content-Length: 15\nETag: opaque\n";
  EXPECT_TRUE(consists_of(answer_of(200, size + "x-amz-checksum-crc32: z8egKg==-2\n"), 15, parts));
  EXPECT_FALSE(consists_of(answer_of(200, size + "x-amz-checksum-crc32: AAAAAA==-2\n"), 15, parts));
  EXPECT_FALSE(consists_of(answer_of(200, size), 15, parts)) << "nothing tells";
}

}  // namespace
}  // namespace tensorizer
