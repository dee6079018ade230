#include "io/http_answer.h"

#include <algorithm>

#include "base/number.h"

namespace tensorizer {

namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r' ||
                           text.back() == '\n')) {
    text.remove_suffix(1);
  }
  return text;
}

bool same_letters(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

// "bytes 0-99/1234", or "bytes 0-99/*".
void parse_content_range(std::string_view text, HttpAnswer& answer) {
  if (!text.starts_with("bytes ")) return;
  text = trimmed(text.substr(6));
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

}  // namespace

void HttpAnswer::take_header(std::string_view line) {
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  const std::string_view name = line.substr(0, colon);
  const std::string_view value = trimmed(line.substr(colon + 1));
  if (same_letters(name, "etag")) {
    if (value.starts_with('"')) object.etag = value;
  } else if (same_letters(name, "last-modified")) {
    object.last_modified = value;
  } else if (same_letters(name, "content-range")) {
    parse_content_range(value, *this);
  } else if (same_letters(name, "content-length")) {
    content_length = parse_number(value);
  } else if (same_letters(name, "content-encoding")) {
    encoded = !same_letters(value, "identity");
  } else if (same_letters(name, "retry-after")) {
    if (const auto seconds = parse_number(value)) {
      retry_after = std::chrono::seconds(std::min<std::uint64_t>(*seconds, 3600));
    }
  }
}

}  // namespace tensorizer
