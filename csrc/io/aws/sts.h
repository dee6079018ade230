// AWS's security token service (STS), which gives temporary credentials of a role.
#pragma once

#include <string>

#include "base/cancel.h"
#include "io/aws/credentials.h"
#include "io/http/options.h"

namespace tensorizer {

// The address of the service, and the options of requests to it.
struct StsService {
  std::string endpoint;  // a URL; empty: AWS's own, of the region or the global one
  std::string region;    // valid, or empty
  HttpOptions http;
};

struct AwsRole {
  std::string arn;
  std::string session_name;  // empty: generated
  std::string external_id = {};
  std::string duration = {};  // in seconds; empty: an hour
};

// Return credentials of the role, given other credentials or the token of a web identity. Throw
// Error: PermissionDenied if the role is refused; the message has the role and the error code.
S3Credentials assume_role(const StsService& service, const AwsRole& role, const S3Credentials& by,
                          Cancel& cancel);
S3Credentials assume_role_with_token(const StsService& service, const AwsRole& role,
                                     const std::string& token, Cancel& cancel);

}  // namespace tensorizer
