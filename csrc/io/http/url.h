// URLs as libcurl reads them, which is what sends the requests.
#pragma once

#include <optional>
#include <string>

namespace tensorizer {

// "https://host:443": what a server is known by. Empty where it is no http:// or https:// URL.
std::string origin_of(const std::string& url);

// Where the Location in an answer leads; nothing where it is no http:// or https:// URL. A user and
// a password in `base` go along to the same origin.
std::optional<std::string> redirected(const std::string& base, const std::string& location);

}  // namespace tensorizer
