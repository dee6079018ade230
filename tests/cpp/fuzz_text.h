// What the fuzz targets of texts share: addresses, options, settings and the responses of servers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace tensorizer {

inline void require(bool condition) {
  if (!condition) std::abort();
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != text.npos;
}

// A secret. No message may hold it, unless the input does.
inline constexpr std::string_view kSecret = "s3same-0pen-8127";

// Runs `body`, and returns whether it threw nothing. An Error must be of one of these kinds, and
// its text must not hold the secret.
template <typename Body>
bool accepts(std::initializer_list<ErrorKind> kinds, const Body& body) {
  try {
    body();
    return true;
  } catch (const Error& error) {
    require(std::find(kinds.begin(), kinds.end(), error.kind()) != kinds.end());
    require(!contains(error.what(), kSecret));
    return false;
  }
}

// Returns `text` with every '$' replaced by the secret, so that it can be anywhere.
inline std::string with_secret(std::string_view text) {
  std::string made;
  for (const char c : text) {
    if (c == '$') {
      made += kSecret;
    } else {
      made += c;
    }
  }
  return made;
}

inline std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = std::min(text.find(at), text.size());
    parts.push_back(text.substr(0, end));
    if (end == text.size()) return parts;
    text.remove_prefix(end + 1);
  }
}

inline bool is_lower_case(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
}

}  // namespace tensorizer
