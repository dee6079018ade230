#include "base/json_string.h"

#include <algorithm>

namespace tensorizer {

namespace {

bool is_escaped(char c) noexcept {
  return static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\';
}

}  // namespace

void put_json_string(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t";
  constexpr std::string_view kLetters = "\"\\bfnrt";
  out += '"';
  while (true) {
    const auto escaped = std::find_if(text.begin(), text.end(), is_escaped);
    const auto plain = static_cast<std::size_t>(escaped - text.begin());
    out += text.substr(0, plain);
    if (escaped == text.end()) break;
    if (const std::size_t known = kEscaped.find(*escaped); known != std::string_view::npos) {
      out += '\\';
      out += kLetters[known];
    } else {
      out += "\\u00";
      out += kHex[static_cast<unsigned char>(*escaped) >> 4];
      out += kHex[static_cast<unsigned char>(*escaped) & 15];
    }
    text.remove_prefix(plain + 1);
  }
  out += '"';
}

}  // namespace tensorizer
