// The services that give a container or a machine its credentials.
#pragma once

#include <string>

#include "base/cancel.h"
#include "io/aws/credentials.h"
#include "io/aws/json.h"
#include "io/http/options.h"
#include "io/secret.h"

namespace tensorizer {

// Returns the credentials at AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI. Of `http`, only
// the trusted certificates are used. Throws Error: InvalidArgument for an address to which the
// container's token must not be sent.
S3Credentials container_credentials(const HttpOptions& http, Cancel& cancel);

// Returns the credentials of the machine's role, from version 2 of EC2's metadata service. Throws
// Error: Unavailable or TimedOut after a second or two if there is no such service, and
// PermissionDenied if it has no role or AWS_EC2_METADATA_DISABLED is "true".
S3Credentials machine_credentials(Cancel& cancel);

// Returns the credentials in AccessKeyId, SecretAccessKey, Token or SessionToken, and Expiration,
// which may be missing. Throws Error(InvalidFormat), whose message has `label` and none of the
// values, if a key is missing or the expiration is malformed, and Error(PermissionDenied) for a
// code other than "Success". `secrets`: what the request sent, which must not be quoted.
S3Credentials credentials_in(const JsonObject& object, const std::string& label,
                             const Secrets& secrets = {});

}  // namespace tensorizer
