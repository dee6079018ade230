// Writes strings of JSON.
#pragma once

#include <string>
#include <string_view>

namespace tensorizer {

// Appends `text`, which must be UTF-8, in double quotes. Escapes only what JSON demands.
void put_json_string(std::string& out, std::string_view text);

}  // namespace tensorizer
