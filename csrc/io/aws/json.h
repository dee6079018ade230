// The JSON that tells credentials: one object, whose values are texts, numbers and the like.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace tensorizer {

using JsonObject = std::map<std::string, std::string, std::less<>>;

// Returns the values by their names: a text is decoded, a whole number, true and false are written
// out, and null, arrays, objects and other numbers are left out. Returns null where the text is not
// JSON, has a number beyond 64 bits, is nested more than 64 levels deep, has a name twice, or is
// other JSON than an object.
std::optional<JsonObject> parse_json_object(std::string_view text);

}  // namespace tensorizer
