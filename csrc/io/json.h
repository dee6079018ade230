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
// and what is null is left out. Nothing where the text is not JSON, or is any other JSON: an array,
// an object with one or with another object in it, a name that stands twice.
std::optional<JsonObject> parse_json_object(std::string_view text);

}  // namespace tensorizer
