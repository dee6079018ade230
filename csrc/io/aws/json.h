// Parses the JSON in which credentials come: one object of simple values.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace tensorizer {

using JsonObject = std::map<std::string, std::string, std::less<>>;

// Returns the values by name. Strings are decoded, integers and booleans are returned as text, and
// null, arrays, objects and other numbers are left out. Returns null if the text is not a JSON
// object, has an integer beyond 64 bits, is nested more than 64 levels deep, or has a name twice.
std::optional<JsonObject> parse_json_object(std::string_view text);

}  // namespace tensorizer
