// What a web server says before the bytes of a file.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tensorizer {

// What every answer about one object says the same.
struct HttpIdentity {
  std::string etag;           // a strong one, or empty
  std::string last_modified;  // or empty
  std::optional<std::uint64_t> size;
};

// The head of an answer, as far as it matters here.
struct HttpAnswer {
  int status = 0;
  HttpIdentity object;
  // Of the object, which bytes follow: all of them, from 0, unless the status is 206.
  std::uint64_t begin = 0;
  std::optional<std::uint64_t> end;
  bool encoded = false;  // the body is not the object's own bytes
  std::optional<std::chrono::seconds> retry_after;
  std::optional<std::uint64_t> content_length;
  // All of the head, names in lower case.
  std::vector<std::pair<std::string, std::string>> headers;
  // What came in a body that nobody wanted, its beginning: why the server refuses.
  std::string refusal;

  // Takes one line of the head, "name: value"; what makes no sense is as if it were not there.
  void take_header(std::string_view line);
  // The header of a name in lower case; empty where there is none.
  std::string_view header(std::string_view name) const;
};

}  // namespace tensorizer
