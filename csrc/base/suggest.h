// Finds the known names that a misspelt one is near to, for messages.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tensorizer {

// Returns ": did you mean 'x' or 'y'?" with the nearest of the known names, three at most, quoted;
// an empty text if none is near. Names are near if they differ in three letters at most, and in no
// more than a third of the longer one, or if one is the end of the other behind a dot. If none is
// so near, those that begin with it and go on without a dot are. Case makes no difference.
//
// Takes less than 100 ms however many and long the names are: names over 128 bytes are not
// compared, and neither are those behind the first 65536, or fewer if they resemble each other.
std::string did_you_mean(std::string_view given, std::span<const std::string_view> known);

// The same, with the known names in single quotes in a text: "'true' or 'false'".
std::string did_you_mean(std::string_view given, std::string_view quoted_names);

}  // namespace tensorizer
