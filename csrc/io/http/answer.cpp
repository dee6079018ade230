#include "io/http/answer.h"

#include <curl/curl.h>

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "base/number.h"
#include "base/text.h"
#include "base/world.h"
#include "io/http/open.h"

namespace tensorizer {

namespace {

// Parses a number of seconds, or a date.
std::optional<std::chrono::seconds> parse_retry_after(const std::string& value) {
  std::uint64_t seconds = 0;
  if (const auto number = parse_number(value)) {
    seconds = *number;
  } else {
    const std::time_t date = curl_getdate(value.c_str(), nullptr);
    if (date == -1) return std::nullopt;
    const std::time_t now = WallClock::seconds();
    seconds = date > now ? static_cast<std::uint64_t>(date - now) : 0;
  }
  return std::chrono::seconds(std::min<std::uint64_t>(seconds, 3600));
}

// Returns true for a Content-Encoding that changes bytes. Uploads may leave other words there:
// boto3's "aws-chunked" is about the request, and "binary" and "utf-8" are no codings at all.
bool is_encoding(std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    const std::string word = lower_case(trimmed(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!word.empty() && word != "identity" && word != "aws-chunked" && word != "binary" &&
        word != "utf-8") {
      return true;
    }
  }
  return false;
}

// Parses "bytes 0-99/1234", "bytes 0-99/*", or "bytes */1234", which refuses a range.
void parse_content_range(std::string_view text, HttpAnswer& answer) {
  if (lower_case(text.substr(0, 6)) != "bytes ") return;
  text = trimmed(text.substr(6));
  if (text.starts_with("*/")) answer.object.size = parse_number(text.substr(2));
  const std::size_t dash = text.find('-');
  const std::size_t slash = text.find('/');
  if (dash == std::string_view::npos || slash == std::string_view::npos || dash > slash) return;
  const auto begin = parse_number(text.substr(0, dash));
  const auto last = parse_number(text.substr(dash + 1, slash - dash - 1));
  if (!begin || !last || *last < *begin || *last == UINT64_MAX) return;
  answer.begin = *begin;
  answer.end = *last + 1;
  answer.object.size = parse_number(text.substr(slash + 1));
}

// Returns true for an ETag that begins with the modification time: nginx makes its ETags of time
// and size, in hexadecimal digits.
bool is_made_of_time(std::string_view etag, std::time_t modified) {
  char begin[32];
  std::snprintf(begin, sizeof(begin), "\"%llx-", static_cast<unsigned long long>(modified));
  return etag.starts_with(begin);
}

}  // namespace

bool HttpIdentity::has_strong_etag() const {
  return etag.size() > 2 && etag.find('"') == 0 && etag.find('"', 1) == etag.size() - 1 &&
         is_header_value(etag);
}

bool HttpAnswer::has_strong_validator() const {
  const std::time_t modified = curl_getdate(object.last_modified.c_str(), nullptr);
  const std::time_t date = curl_getdate(std::string(header("date")).c_str(), nullptr);
  if (modified != -1 && date != -1 && modified < date) return true;
  return object.has_strong_etag() && !is_made_of_time(object.etag, modified);
}

void HttpAnswer::take_header(std::string_view line) {
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  const std::string name = lower_case(line.substr(0, colon));
  const std::string value(trimmed(line.substr(colon + 1)));
  if (name == "etag") {
    object.etag = value;
  } else if (name == "last-modified") {
    object.last_modified = value;
  } else if (name == "content-range") {
    parse_content_range(value, *this);
  } else if (name == "content-length") {
    content_length = parse_number(value);
  } else if (name == "content-encoding") {
    encoded = encoded || is_encoding(value);
  } else if (name == "retry-after") {
    retry_after = parse_retry_after(value);
  }
  headers.emplace_back(name, value);
}

std::string_view HttpAnswer::header(std::string_view name) const {
  const auto found = std::find_if(headers.rbegin(), headers.rend(),
                                  [&](const auto& header) { return header.first == name; });
  return found == headers.rend() ? std::string_view() : found->second;
}

bool is_page(std::string_view body) {
  const std::string begin = lower_case(body.substr(0, 256));
  return begin.find("<!doctype html") != begin.npos || begin.find("<html") != begin.npos;
}

}  // namespace tensorizer
