// Validates and writes UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tensorizer {

// Returns the length of the well-formed UTF-8 sequence at the start of `text`, or 0 if there is
// none.
std::size_t utf8_sequence(std::string_view text) noexcept;

bool is_utf8(std::string_view text) noexcept;

// Appends one code point. Surrogates and values past U+10FFFF must not be passed.
void append_utf8(std::string& out, char32_t code_point);

}  // namespace tensorizer
