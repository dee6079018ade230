// One look for credentials, wherever AWS's own tools look.
//
// By hand, because only AWS's SDK has it, which brings an HTTP client, threads and signal handlers
// of its own.
#pragma once

#include "base/cancel.h"
#include "io/aws/credentials.h"
#include "io/aws/options.h"
#include "io/http/options.h"

namespace tensorizer {

// Asks the first place that is there (S3Config::origin), and no other if that one fails. Throws as
// S3CredentialsChain::get() does.
S3Credentials find_s3_credentials(const S3Options& s3, const HttpOptions& http, Cancel& cancel);

}  // namespace tensorizer
