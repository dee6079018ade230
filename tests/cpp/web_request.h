// Parses the requests that a client sends to a web server.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/text.h"

namespace tensorizer::testing_support {

struct WebRequest {
  std::string method, path, body;              // the path with its query
  std::map<std::string, std::string> headers;  // names in lower case
};

// Parses the head of a request, with its empty line.
inline WebRequest parse_web_head(const std::string& head) {
  WebRequest request;
  const std::size_t space = head.find(' ');
  request.method = head.substr(0, space);
  request.path = head.substr(space + 1, head.find(' ', space + 1) - space - 1);
  for (std::size_t at = head.find("\r\n") + 2; head.find(':', at) != std::string::npos;) {
    const std::size_t colon = head.find(':', at);
    const std::size_t end = head.find("\r\n", at);
    request.headers[lower_case(head.substr(at, colon - at))] =
        trimmed(std::string_view(head).substr(colon + 1, end - colon - 1));
    at = end + 2;
  }
  return request;
}

}  // namespace tensorizer::testing_support
