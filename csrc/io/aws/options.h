// The options for S3.
#pragma once

#include <string>
#include <vector>

#include "io/option.h"

namespace tensorizer {

// How to speak with S3, as the caller said it: what is empty was not given. What may be a secret
// may also name one instead (io/secret.h).
struct S3Options {
  std::string access_key_id;
  std::string secret_access_key;
  std::string session_token;
  std::string endpoint;     // a URL, or a host
  std::string region;       // for example "eu-west-1"
  std::string profile;      // of the files in ~/.aws
  std::string config_path;  // a file as s3cmd has it
  bool force_http = false;
  bool anonymous = false;
  bool anonymous_without_keys = false;  // only where there are no keys anywhere
  bool requester_pays = false;
  std::string version_id;
  std::string sse_customer_key;  // a secret: 32 bytes in base64
  std::string addressing;        // "path", "virtual", or empty: what fits the endpoint
  bool signs_url = false;        // loads are signed in their URLs, by version 2
};

// Keeps a reference.
std::vector<Option> s3_options(S3Options& s3);

}  // namespace tensorizer
