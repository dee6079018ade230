#include "io/aws/service_url.h"

#include <algorithm>

#include "base/error.h"
#include "base/number.h"
#include "base/text.h"
#include "io/secret.h"

namespace tensorizer {

namespace {

bool may_stand_in_host(char c) {
  return is_letter(c) || is_digit(c) || c == '.' || c == '-' || c == '_';
}

bool is_host(std::string_view host) {
  if (!host.starts_with('[')) {
    return !host.empty() && std::all_of(host.begin(), host.end(), &may_stand_in_host);
  }
  return host.size() > 2 && host.ends_with(']') &&
         std::all_of(host.begin() + 1, host.end() - 1,
                     [](char c) { return hex_value(c) >= 0 || c == ':' || c == '.'; });
}

bool is_port(std::string_view port) {
  const auto number = parse_number(port);
  return number && *number > 0 && *number < 65536;
}

bool is_path(std::string_view path) {
  return std::all_of(path.begin(), path.end(), [](char c) {
    return may_stand_in_host(c) || c == '/' || c == '~' || c == '+' || c == '=' || c == ',';
  });
}

}  // namespace

std::string service_url(const std::string& given, bool force_http, const std::string& what) {
  const std::string url = given.find("://") == std::string::npos ? "https://" + given : given;
  const std::size_t begin = url.find("://") + 3;
  const std::size_t end = std::min(url.find('/', begin), url.size());
  const std::string scheme = lower_case(url.substr(0, begin));
  const std::string authority = lower_case(url.substr(begin, end - begin));
  std::string path = url.substr(end);
  while (path.ends_with('/')) path.pop_back();

  // Colons between brackets are a part of the host.
  const std::size_t bracket = std::min(authority.find(']'), authority.size());
  const std::size_t colon = authority.find(':', authority.starts_with('[') ? bracket : 0);
  const std::string host = authority.substr(0, colon);
  std::string port = colon == std::string::npos ? "" : authority.substr(colon);
  if ((scheme != "http://" && scheme != "https://") || !is_host(host) ||
      (!port.empty() && !is_port(port.substr(1))) || !is_path(path)) {
    throw Error(ErrorKind::InvalidArgument,
                what + " is " + quote(without_secrets(url)) +
                    ", and must be an http:// or https:// URL of a host, and a path at most");
  }
  if (port == (scheme == "http://" ? ":80" : ":443")) port.clear();
  return (force_http ? "http://" : scheme) + host + port + path;
}

}  // namespace tensorizer
