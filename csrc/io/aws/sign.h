// Signed requests: AWS's Signature Version 4, and version 2 for URLs.
//
// By hand, because libcurl's CURLOPT_AWS_SIGV4 knows neither version 2 nor escaped keys and session
// tokens in all of its releases, and AWS's SDK is a hundred times this file.
#pragma once

#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tensorizer {

using NamedTexts = std::vector<std::pair<std::string, std::string>>;

// What of a request is under its signature.
struct SignedRequest {
  std::string method;
  std::string path;    // as it stands in the URL
  NamedTexts query;    // as it is meant, not escaped
  NamedTexts headers;  // with "host"
  std::string payload_hash;
};

struct SigningScope {
  std::string region;
  std::string service = "s3";
  std::time_t time = 0;
};

// In the place of a payload's hash, where nobody shall wait for one.
inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";

// 20130524T000000Z
std::string signing_time(std::time_t time);

// Letters, digits and "-._~" stand for themselves, all else becomes %XX; slashes on demand.
std::string escape_uri(std::string_view text, bool keep_slashes);

// "a=b&c=d", in the order of a signature.
std::string escape_query(const NamedTexts& query);

// The value of the header "Authorization".
std::string authorization(const SignedRequest& request, const SigningScope& scope,
                          std::string_view key_id, std::string_view secret);

// By version 2, which signs a URL. `request`: its path begins with the bucket, and of its headers
// those of Amazon's count. The parameters stand in the order of botocore, so that caches know the
// URL.
std::string signed_parameters(const SignedRequest& request, std::time_t expires,
                              std::string_view key_id, std::string_view secret,
                              std::string_view session_token);

// When a URL that is signed now expires: at the second midnight from now, of UTC. All URLs of a day
// are equal then, and hold for a day at least.
std::time_t last_moment(std::time_t now);

}  // namespace tensorizer
