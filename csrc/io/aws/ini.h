// Files of settings in sections, as AWS's tools and s3cmd write them.
//
//   [section]
//   name = value        # and ; begin a comment at the start of a line only
//   s3 =
//     name = value      an indented block is a setting of its own: "s3.name"
//
// Names of settings come out in lower case. What is said twice holds as it was said last; a section
// may go on further down. An indented line behind a value goes on with that value.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace tensorizer {

using IniSection = std::map<std::string, std::string, std::less<>>;
using IniFile = std::map<std::string, IniSection, std::less<>>;

// Throws Error(InvalidFormat), which names the file as `label` says and the line, but nothing in
// it.
IniFile parse_ini(std::string_view text, const std::string& label);

}  // namespace tensorizer
