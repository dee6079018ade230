// Signed requests: AWS's Signature Version 4.
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

}  // namespace tensorizer
