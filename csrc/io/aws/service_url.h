// Where a service is.
#pragma once

#include <string>

namespace tensorizer {

// A URL that was given as one, or as a host and a port: with its scheme, its host in lower case,
// without the port that its scheme has anyway, and without a slash at its end. `force_http` takes
// the TLS away; `what` says what it is, for messages. Throws Error(InvalidArgument) for anything
// but an http:// or https:// URL of a host and at most a path.
std::string service_url(const std::string& given, bool force_http, const std::string& what);

}  // namespace tensorizer
