// The JSON that tells credentials: one object, whose values are texts, numbers and the like.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace tensorizer {

using JsonObject = std::map<std::string, std::string, std::less<>>;

// The values by their names: a text is decoded, a number, true or false stands as it is written,
// and null, arrays and objects are left out. Nothing where the text is not JSON, where it is nested
// more than 64 levels deep, where a name stands twice, and where it is other JSON than an object.
std::optional<JsonObject> parse_json_object(std::string_view text);

}  // namespace tensorizer
