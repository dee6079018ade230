// Text functions for ASCII only. The C library's functions depend on the locale.
#pragma once

#include <string>
#include <string_view>

namespace tensorizer {

inline bool is_space(char c) noexcept { return c == ' ' || (c >= '\t' && c <= '\r'); }
inline bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
inline bool is_letter(char c) noexcept { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
inline bool is_in_word(char c) noexcept { return is_letter(c) || is_digit(c); }

// Returns `text` without the white space around it.
inline std::string_view trimmed(std::string_view text) noexcept {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

inline std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

// Returns the value of a hexadecimal digit, or -1.
inline int hex_value(char c) noexcept {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

}  // namespace tensorizer
