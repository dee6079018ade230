// Parses URLs with libcurl's parser, so that they mean the same as to libcurl when it connects.
#pragma once

#include <optional>
#include <string>

namespace tensorizer {

struct UrlParts {
  std::string scheme;     // "http" or "https"
  std::string host;       // in lower case; an address of IPv6 is in brackets
  std::string port;       // empty if it is the default of the scheme
  std::string path;       // begins with a slash, and is escaped
  bool has_more = false;  // a user, a password, a query or a fragment
};

// Returns null for anything but an http:// or https:// URL.
std::optional<UrlParts> url_parts(const std::string& url);

// Returns the origin of a URL, such as "https://host:443"; empty for anything but an http:// or
// https:// URL.
std::string origin_of(const std::string& url);

// Returns a URL without user, password and fragment; null for anything but an http:// or https://
// URL. Its parameters may still be a secret.
std::optional<std::string> url_without_login(const std::string& url);

// Returns the URL that the Location in a response from `base` leads to; null if that is no http://
// or https:// URL. A user and a password in `base` are kept if the origin is the same.
std::optional<std::string> redirected(const std::string& base, const std::string& location);

// Returns the URL of the file `name` beside the one that `url` names: with the same user, password
// and query, and no fragment. Throws Error(InvalidArgument) for a malformed URL, and for one with a
// signature, which is valid for one file only; the message begins with `label`.
std::string sibling_url(const std::string& url, const std::string& name, const std::string& label);

// Returns the URL at which libcurl connects to the server `host`, written "host" or "host:port".
// Throws Error(InvalidArgument) if there is none; the message begins with `label`.
std::string server_url(const std::string& scheme, const std::string& host,
                       const std::string& default_port, const std::string& label);

}  // namespace tensorizer
