// URLs as libcurl reads them, which is what sends the requests.
#pragma once

#include <optional>
#include <string>

namespace tensorizer {

struct UrlParts {
  std::string scheme;     // "http" or "https"
  std::string host;       // in lower case; an address of IPv6 is in brackets
  std::string port;       // empty where it is the one of the scheme
  std::string path;       // begins with a slash, and is escaped
  bool has_more = false;  // a user, a password, a query or a fragment
};

// Returns null for anything but an http:// or https:// URL.
std::optional<UrlParts> url_parts(const std::string& url);

// "https://host:443": what a server is known by. Empty where it is no http:// or https:// URL.
std::string origin_of(const std::string& url);

// Where the Location in an answer leads; null where it is no http:// or https:// URL. A user and
// a password in `base` go along to the same origin.
std::optional<std::string> redirected(const std::string& base, const std::string& location);

}  // namespace tensorizer
