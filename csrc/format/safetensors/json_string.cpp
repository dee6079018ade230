#include "format/safetensors/json_string.h"

namespace tensorizer {

void put_json_string(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t";
  constexpr std::string_view kLetters = "\"\\bfnrt";
  out += '"';
  for (const char c : text) {
    if (const std::size_t known = kEscaped.find(c); known != std::string_view::npos) {
      out += '\\';
      out += kLetters[known];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += "\\u00";
      out += kHex[static_cast<unsigned char>(c) >> 4];
      out += kHex[static_cast<unsigned char>(c) & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

}  // namespace tensorizer
