// The head of a web server's response: status and headers.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tensorizer {

// The headers that must be the same in every response about one object. Empty if they were not
// sent.
struct HttpIdentity {
  std::string etag;  // weak ones ("W/...") and malformed ones as well
  std::string last_modified;
  std::optional<std::uint64_t> size;

  // Returns true if the ETag is a strong one, which may be sent back in If-Match.
  bool has_strong_etag() const;
};

// The parts of a response's head that are used here.
struct HttpAnswer {
  int status = 0;
  HttpIdentity object;
  // The range of the object that the body holds: all of it, from 0, unless the status is 206.
  std::uint64_t begin = 0;
  std::optional<std::uint64_t> end;
  bool encoded = false;  // the body is not the object's own bytes
  std::optional<std::chrono::seconds> retry_after;
  std::optional<std::uint64_t> content_length;
  // All headers, with names in lower case.
  std::vector<std::pair<std::string, std::string>> headers;
  // The beginning of a body that the receiver did not want: why the server refuses.
  std::string refusal;

  // Returns true if an object with other bytes would have another ETag or Last-Modified. For
  // Last-Modified this holds only if it is older than the response (RFC 9110, 8.8.2.2): within the
  // same second, the object may change once more. The same applies to an ETag that is derived from
  // it.
  bool has_strong_validator() const;

  // Parses one line of the head, "name: value". Ignores malformed lines and values.
  void take_header(std::string_view line);
  // Returns the value of a header, whose name is given in lower case; empty if there is none. Of
  // several the last one counts, here and in the members above but `encoded`.
  std::string_view header(std::string_view name) const;
};

// Returns true for a body that is an HTML page.
bool is_page(std::string_view body);

}  // namespace tensorizer
