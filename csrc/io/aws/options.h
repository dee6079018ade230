// The options for S3.
#pragma once

#include <string>
#include <vector>

#include "io/option.h"

namespace tensorizer {

// The caller's options for S3. Empty ones were not given. Secrets may be references to secrets
// (io/secret.h).
struct S3Options {
  std::string access_key_id;
  std::string secret_access_key;
  std::string session_token;
  std::string endpoint;     // a URL, or a host
  std::string region;       // for example "eu-west-1"
  std::string profile;      // of the files in ~/.aws
  std::string config_path;  // a file of s3cmd
  bool force_http = false;
  bool anonymous = false;
  bool anonymous_without_keys = false;  // if no keys are found anywhere
  bool requester_pays = false;
  std::string version_id;
  std::string sse_customer_key;  // a secret: 32 bytes in base64
  std::string addressing;        // "path", "virtual", or empty: chosen by the endpoint
  bool signs_url = false;        // signs the URLs of loads, by Signature Version 2
};

// Returns options that set the members of `s3`. They keep a reference to it.
std::vector<Option> s3_options(S3Options& s3);

}  // namespace tensorizer
