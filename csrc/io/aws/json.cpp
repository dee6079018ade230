#include "io/aws/json.h"

#include <simdjson.h>

#include <set>
#include <utility>

namespace tensorizer {

namespace {

// The object itself, and 64 levels inside it.
constexpr std::size_t kDeepest = 65;

// Returns null for null, arrays, objects, and numbers that are not integers.
std::optional<std::string> text_of(const simdjson::dom::element& value) {
  using Type = simdjson::dom::element_type;
  switch (value.type()) {
    case Type::STRING:
      return std::string(value.get_string().value_unsafe());
    case Type::INT64:
      return std::to_string(value.get_int64().value_unsafe());
    case Type::UINT64:
      return std::to_string(value.get_uint64().value_unsafe());
    case Type::BOOL:
      return value.get_bool().value_unsafe() ? "true" : "false";
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<JsonObject> parse_json_object(std::string_view text) {
  simdjson::dom::parser parser;
  simdjson::dom::object members;
  if (parser.allocate(text.size(), kDeepest) != simdjson::SUCCESS ||
      parser.parse(text.data(), text.size()).get(members) != simdjson::SUCCESS) {
    return std::nullopt;
  }
  JsonObject object;
  std::set<std::string_view> names;
  for (const simdjson::dom::key_value_pair member : members) {
    if (!names.insert(member.key).second) return std::nullopt;
    std::optional<std::string> value = text_of(member.value);
    if (value) object.emplace(member.key, std::move(*value));
  }
  return object;
}

}  // namespace tensorizer
