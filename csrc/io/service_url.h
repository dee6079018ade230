// Normalizes the URL of a service.
#pragma once

#include <string>

namespace tensorizer {

// Returns the URL for `given`, which is a URL, or a host with or without a port: with its scheme,
// its host in lower case, without the default port of the scheme, and without a slash at the end.
// `force_http` makes it an http:// URL. `what` names it in messages. Throws Error(InvalidArgument)
// for anything but an http:// or https:// URL of a host and at most a path.
std::string service_url(const std::string& given, bool force_http, const std::string& what);

// Returns the same for the URL in a variable or a file of another program, which has a scheme.
std::string full_service_url(const std::string& given, const std::string& what);

// Throws Error(InvalidArgument) if such a URL is not encrypted, which the option 'force_http'
// allows.
void require_https(const std::string& url, const std::string& what);

}  // namespace tensorizer
