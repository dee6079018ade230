// Searches for credentials once, where AWS's own tools search.
//
// Written by hand, because the only library for it is AWS's SDK, which brings its own HTTP client,
// threads and signal handlers.
#pragma once

#include "base/cancel.h"
#include "io/aws/command.h"
#include "io/aws/credentials.h"
#include "io/aws/options.h"
#include "io/http/options.h"

namespace tensorizer {

// The limits of a program that prints credentials. Tests lower them.
extern CommandLimits credential_command_limits;

// Returns the credentials of the first source that is configured (S3Config::origin). If that one
// fails, no other is tried. Throws as S3CredentialsChain::get() does.
S3Credentials find_s3_credentials(const S3Options& s3, const HttpOptions& http, Cancel& cancel);

}  // namespace tensorizer
