// Signs requests: by AWS's Signature Version 4, and by version 2 for URLs.
//
// Written by hand, because libcurl's CURLOPT_AWS_SIGV4 does not support version 2, nor, in all of
// its releases, escaped keys and session tokens. AWS's SDK is a hundred times the size of this
// file.
#pragma once

#include <ctime>
#include <string>
#include <string_view>

#include "io/uri.h"

namespace tensorizer {

// The parts of a request that are signed.
struct SignedRequest {
  std::string method;
  std::string path;    // as in the URL, escaped
  NamedTexts query;    // not escaped
  NamedTexts headers;  // with "host"
  std::string payload_hash;
};

struct SigningScope {
  std::string region;
  std::string service = "s3";
  std::time_t time = 0;
};

// Replaces the hash of a payload, so that a request need not wait for it.
inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";

// Returns a time as "20130524T000000Z".
std::string signing_time(std::time_t time);

// Returns the value of the header "Authorization", by version 4.
std::string authorization(const SignedRequest& request, const SigningScope& scope,
                          std::string_view key_id, std::string_view secret);

// Returns the parameters that sign a URL by version 2. The path of `request` must begin with the
// bucket; of its headers, only those that begin with "x-amz-" are signed. The parameters are in the
// order of botocore, so that caches recognize the URL.
std::string signed_parameters(const SignedRequest& request, std::time_t expires,
                              std::string_view key_id, std::string_view secret,
                              std::string_view session_token);

// Returns the time at which a URL that is signed now expires: the second midnight from now, in UTC.
// So all URLs of a day are equal, and each is valid for at least a day.
std::time_t last_moment(std::time_t now);

}  // namespace tensorizer
