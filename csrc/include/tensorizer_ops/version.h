// The version of the library.
#pragma once

#include <string_view>

namespace tensorizer {

// The version of these headers.
inline constexpr std::string_view kVersion = "0.1.0";

// Returns the version of the library that the program runs with. The text is static.
std::string_view version() noexcept;

}  // namespace tensorizer
