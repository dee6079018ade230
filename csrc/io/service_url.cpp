#include "io/service_url.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "io/secret.h"
#include "io/url.h"

namespace tensorizer {

namespace {

// Returns true if the text behind "://" needs no escaping, so that it is signed as it is sent.
bool is_plain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return is_letter(c) || is_digit(c) ||
           std::string_view(".-_:[]/~+=,").find(c) != std::string_view::npos;
  });
}

// Returns true for a URL of a host and at most a path that all parsers read in the same way.
bool is_service(std::string_view url, const std::optional<UrlParts>& parts) {
  const std::string_view rest = url.substr(url.find("://") + 3);
  return parts && !parts->has_more && parts->port != "0" && is_plain(rest) &&
         !rest.starts_with('/') && (std::string(rest) + '/').find(":/") == std::string::npos;
}

}  // namespace

std::string service_url(const std::string& given, bool force_http, const std::string& what) {
  const std::string url = given.find("://") == std::string::npos ? "https://" + given : given;
  const std::optional<UrlParts> parts = url_parts(url);
  if (!is_service(url, parts)) {
    throw Error(ErrorKind::InvalidArgument,
                what + " is " + quote(without_secrets(url)) +
                    ", and must be an http:// or https:// URL with a host and at most a path");
  }
  std::string path = parts->path;
  while (path.ends_with('/')) path.pop_back();
  return (force_http ? "http" : parts->scheme) + "://" + parts->host +
         (parts->port.empty() ? "" : ":" + parts->port) + path;
}

std::string full_service_url(const std::string& given, const std::string& what) {
  if (given.find("://") == std::string::npos) {
    const std::string shown = without_secrets("https://" + given).substr(8);
    throw Error(ErrorKind::InvalidArgument,
                what + " is " + quote(shown) + ", and must begin with http:// or https://");
  }
  return service_url(given, false, what);
}

void require_https(const std::string& url, const std::string& what) {
  if (!url.starts_with("http://")) return;
  throw Error(ErrorKind::InvalidArgument,
              what + " is " + quote(url) +
                  ", which is not encrypted: set option 'force_http' to 'true' to allow that");
}

}  // namespace tensorizer
