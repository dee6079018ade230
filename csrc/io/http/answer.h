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

// What every answer about one object says the same. What was not said is empty.
struct HttpIdentity {
  std::string etag;  // weak ones ("W/...") and malformed ones as well
  std::string last_modified;
  std::optional<std::uint64_t> size;

  // Whether the ETag is a strong one, which may be sent back in If-Match.
  bool has_strong_etag() const;
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
  // The beginning of a body that nobody wanted: why the server refuses.
  std::string refusal;

  // Whether an object with other bytes would have another ETag or Last-Modified. A Last-Modified
  // tells that only where it is older than the answer (RFC 9110, 8.8.2.2): until its second is
  // over, the object may change once more. The same holds for an ETag that is made of it.
  bool has_strong_validator() const;

  // Takes one line of the head, "name: value"; what makes no sense is as if it were not there.
  void take_header(std::string_view line);
  // The header of a name in lower case; empty where there is none.
  std::string_view header(std::string_view name) const;
};

}  // namespace tensorizer
