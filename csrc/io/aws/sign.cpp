#include "io/aws/sign.h"

#include <algorithm>

#include "base/text.h"
#include "codec/hmac.h"

namespace tensorizer {

namespace {

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256";

std::string formatted(std::time_t time, const char* format) {
  std::tm utc{};
  gmtime_r(&time, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof(text), format, &utc)};
}

// Returns the text without spaces around it, and with runs of spaces replaced by one.
std::string squeezed(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c != ' ' || (!result.empty() && result.back() != ' ')) result += c;
  }
  if (result.ends_with(' ')) result.pop_back();
  return result;
}

NamedTexts canonical_headers(const NamedTexts& headers) {
  NamedTexts canonical;
  for (const auto& [name, value] : headers)
    canonical.emplace_back(lower_case(name), squeezed(value));
  std::stable_sort(canonical.begin(), canonical.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  return canonical;
}

}  // namespace

std::string signing_time(std::time_t time) { return formatted(time, "%Y%m%dT%H%M%SZ"); }

std::string authorization(const SignedRequest& request, const SigningScope& scope,
                          std::string_view key_id, std::string_view secret) {
  std::string canonical =
      request.method + "\n" + request.path + "\n" + escape_query(request.query) + "\n";
  std::string names;
  for (const auto& [name, value] : canonical_headers(request.headers)) {
    canonical += name + ":" + value + "\n";
    names += (names.empty() ? "" : ";") + name;
  }
  canonical += "\n" + names + "\n" + request.payload_hash;

  const std::string day = formatted(scope.time, "%Y%m%d");
  const std::string place = day + "/" + scope.region + "/" + scope.service + "/aws4_request";
  const std::string text = std::string(kAlgorithm) + "\n" + signing_time(scope.time) + "\n" +
                           place + "\n" + to_hex(sha256(as_bytes(canonical)));

  Sha256Digest key = hmac(as_bytes("AWS4" + std::string(secret)), as_bytes(day));
  for (const std::string_view part :
       {std::string_view(scope.region), std::string_view(scope.service),
        std::string_view("aws4_request")}) {
    key = hmac(key, as_bytes(part));
  }
  return std::string(kAlgorithm) + " Credential=" + std::string(key_id) + "/" + place +
         ", SignedHeaders=" + names + ", Signature=" + to_hex(hmac(key, as_bytes(text)));
}

std::string signed_parameters(const SignedRequest& request, std::time_t expires,
                              std::string_view key_id, std::string_view secret,
                              std::string_view session_token) {
  constexpr std::string_view kToken = "x-amz-security-token";
  NamedTexts headers = request.headers;
  if (!session_token.empty()) headers.emplace_back(kToken, session_token);
  std::string text = request.method + "\n\n\n" + std::to_string(expires) + "\n";
  for (const auto& [name, value] : canonical_headers(headers)) {
    if (name.starts_with("x-amz-")) text += name + ":" + value + "\n";
  }
  text += request.path;
  for (const auto& [name, value] : request.query) {
    if (name == "versionId") text += "?versionId=" + value;
  }
  const std::string signature = to_base64(hmac_sha1(as_bytes(secret), as_bytes(text)));
  std::string parameters =
      "AWSAccessKeyId=" + escape_uri(key_id, false) + "&Signature=" + escape_uri(signature, false);
  if (!session_token.empty()) {
    parameters += "&" + std::string(kToken) + "=" + escape_uri(session_token, false);
  }
  return parameters + "&Expires=" + std::to_string(expires);
}

std::time_t last_moment(std::time_t now) {
  constexpr std::time_t kDay = 24 * 60 * 60;
  return now - now % kDay + 2 * kDay;
}

}  // namespace tensorizer
