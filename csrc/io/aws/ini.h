// Parses files of settings in sections, as AWS's tools and s3cmd write them.
//
//   [section]
//   name = value        # and ; begin a comment at the start of a line only
//   s3 =
//     name = value      an indented block is a setting of its own: "s3.name"
//
// Names of settings become lower case. The last value of a setting counts, and a section may be
// continued further down. An indented line below a setting with a value continues the value.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace tensorizer {

using IniSection = std::map<std::string, std::string, std::less<>>;
using IniFile = std::map<std::string, IniSection, std::less<>>;

// Throws Error(InvalidFormat), whose message has `label` and the number of the line, but nothing of
// its content.
IniFile parse_ini(std::string_view text, const std::string& label);

// Returns the value of a setting; empty if the section does not have it.
std::string get_setting(const IniSection& section, std::string_view name);

}  // namespace tensorizer
