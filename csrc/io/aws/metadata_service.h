// Services that tell a container or a machine its credentials.
#pragma once

#include <string>

#include "base/cancel.h"
#include "io/aws/credentials.h"
#include "io/aws/json.h"
#include "io/http/options.h"
#include "io/secret.h"

namespace tensorizer {

// What AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI names. `http` says which certificates
// are trusted. Throws Error: InvalidArgument for an address to which nobody's token should go.
S3Credentials container_credentials(const HttpOptions& http, Cancel& cancel);

// The role of the machine, from version 2 of EC2's metadata service. Throws Error, Unavailable or
// TimedOut after a second or two where there is no such service, and PermissionDenied where it has
// no role to give or AWS_EC2_METADATA_DISABLED forbids to ask.
S3Credentials machine_credentials(Cancel& cancel);

// AccessKeyId, SecretAccessKey, Token or SessionToken, and Expiration, which may be missing. Throws
// Error(InvalidFormat), which names `label` and holds none of them, where a key is missing or the
// moment is none. `secrets`: what the one who answers was shown.
S3Credentials credentials_in(const JsonObject& object, const std::string& label,
                             const Secrets& secrets = {});

}  // namespace tensorizer
