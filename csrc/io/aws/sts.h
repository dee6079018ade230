// AWS's security token service, which lends credentials of a role for a while.
#pragma once

#include <string>

#include "base/cancel.h"
#include "io/aws/credentials.h"
#include "io/http/options.h"

namespace tensorizer {

// Where it is, and how to speak with it.
struct StsService {
  std::string endpoint;  // a URL; empty: AWS's own, of the region or of all of them
  std::string region;    // checked, or empty
  HttpOptions http;
};

struct AwsRole {
  std::string arn;
  std::string session_name;  // empty: one is made up
  std::string external_id = {};
  std::string duration = {};  // in seconds; empty: an hour
};

// Throw Error: PermissionDenied where the role is refused, naming it and the reason's code.
S3Credentials assume_role(const StsService& service, const AwsRole& role, const S3Credentials& by,
                          Cancel& cancel);
S3Credentials assume_role_with_token(const StsService& service, const AwsRole& role,
                                     const std::string& token, Cancel& cancel);

}  // namespace tensorizer
