// Reads JSON that is signed: what two parsers could understand differently is refused.
//
// Every byte is checked, also of values that nobody asks for: keys that an object has twice, deep
// nesting, and more than one value are errors.
#pragma once

#include <simdjson.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"

namespace tensorizer {

class StrictJson {
 public:
  using Value = simdjson::ondemand::value;

  enum class Unknown { Refused, Ignored };

  // A member that an object may have.
  struct Member {
    std::string_view key;
    std::function<void(Value&)> read;
    bool required = true;
  };
  static constexpr bool kOptional = false;
  using Members = std::initializer_list<Member>;

  // Messages begin with `what`. The strings that it returns live as long as this object.
  StrictJson(std::vector<std::byte> text, std::string what)
      : size_(text.size()), bytes_(std::move(text)), what_(std::move(what)) {
    bytes_.reserve(size_ + simdjson::SIMDJSON_PADDING);  // exactly
    bytes_.resize(size_ + simdjson::SIMDJSON_PADDING);
  }

  // Reads the members of the only value of the text, as object() does.
  void root(Unknown unknown, Members members) {
    // The parser itself must not get to its end.
    check(parser_.allocate(size_, kDeepest + 2));
    simdjson::ondemand::document document;
    const simdjson::padded_string_view text(as_text(bytes_).data(), size_, bytes_.size());
    check(parser_.iterate(text).get(document));
    Value value;
    if (document.get_value().get(value) != simdjson::SUCCESS) fail("it is not a JSON object");
    object(value, "it", unknown, members);
    if (const char* more = nullptr; document.current_location().get(more) == simdjson::SUCCESS) {
      fail("it has more than one JSON value");
    }
  }

  // Reads the members in the order of the text. Throws if one comes twice, or if a required one is
  // missing. `name` names the object in messages.
  void object(Value value, std::string_view name, Unknown unknown, Members members) {
    simdjson::ondemand::object fields;
    enter();
    expect(value.get_object().get(fields), name, "a JSON object");
    const std::size_t first = keys_.size();
    for (auto each : fields) {
      simdjson::ondemand::field field;
      check(std::move(each).get(field));
      std::string_view key;
      check(field.unescaped_key().get(key));
      keys_.push_back(key);
      const auto* const member = std::ranges::find(members, key, &Member::key);
      if (member != members.end()) {
        member->read(field.value());
      } else if (unknown == Unknown::Ignored) {
        ignore(field.value());
      } else {
        fail(std::string(name) + " has the key " + quote(key) + ", which the format does not have");
      }
    }
    const auto begin = keys_.begin() + static_cast<std::ptrdiff_t>(first);
    std::sort(begin, keys_.end());
    if (const auto twice = std::adjacent_find(begin, keys_.end()); twice != keys_.end()) {
      fail(std::string(name) + " has the key " + quote(*twice) + " twice");
    }
    for (const Member& member : members) {
      if (member.required && !std::binary_search(begin, keys_.end(), member.key)) {
        fail(std::string(name) + " has no " + quote(member.key));
      }
    }
    keys_.resize(first);
    --depth_;
  }

  template <typename Element>
  void array(Value value, std::string_view name, const Element& element) {
    simdjson::ondemand::array elements;
    enter();
    expect(value.get_array().get(elements), name, "an array");
    for (auto each : elements) {
      Value one;
      check(std::move(each).get(one));
      element(one);
    }
    --depth_;
  }

  std::string_view string(Value value, std::string_view name) {
    std::string_view text = value.raw_json_token();
    if (text.starts_with('"') && text.find('\\') == text.npos) {
      // The parser would copy it.
      simdjson::ondemand::raw_json_string raw;
      check(value.get_raw_json_string().get(raw));
      return text.substr(1, text.find('"', 1) - 1);
    }
    expect(value.get_string().get(text), name, "a string");
    return text;
  }

  // Returns false for what is not null, and leaves it to be read.
  bool is_null(Value& value) const {
    bool null = false;
    check(simdjson::simdjson_result<bool>(value.is_null()).get(null));
    return null;
  }

  bool boolean(Value value, std::string_view name) {
    bool truth = false;
    expect(value.get_bool().get(truth), name, "true or false");
    return truth;
  }

  // Reads a whole number of at least 1, which may be written as 4096.0.
  std::uint64_t positive(Value value, std::string_view name) {
    constexpr double kExact = 9007199254740992;  // up to here, each whole number is a double
    constexpr std::string_view kWanted = "a whole number of at least 1";
    simdjson::ondemand::number number;
    std::uint64_t whole = 0;
    if (type_of(value) != simdjson::ondemand::json_type::number) {
      fail(std::string(name) + " is not " + std::string(kWanted));
    }
    check(value.get_number().get(number));
    if (number.is_uint64()) {
      whole = number.get_uint64();
    } else if (number.is_int64()) {
      whole = static_cast<std::uint64_t>(std::max<std::int64_t>(number.get_int64(), 0));
    } else if (const double real = number.get_double(); real >= 1 && real <= kExact) {
      whole = static_cast<std::uint64_t>(real);
      if (static_cast<double>(whole) != real) whole = 0;
    }
    if (whole == 0) fail(std::string(name) + " is not " + std::string(kWanted));
    return whole;
  }

  [[noreturn]] void fail(const std::string& why) const {
    throw Error(ErrorKind::InvalidFormat, what_ + ": " + why);
  }

 private:
  static constexpr std::size_t kDeepest = 32;

  void enter() {
    if (++depth_ > kDeepest) {
      fail("it is nested more than " + std::to_string(kDeepest) + " levels deep");
    }
  }

  simdjson::ondemand::json_type type_of(Value& value) const {
    simdjson::ondemand::json_type type{};
    check(value.type().get(type));
    return type;
  }

  void ignore(Value value) {
    using Type = simdjson::ondemand::json_type;
    switch (type_of(value)) {
      case Type::object:
        return object(value, "an object", Unknown::Ignored, {});
      case Type::array:
        return array(value, "an array", [&](Value& element) { ignore(element); });
      case Type::string:
        string(value, "a value");
        return;
      case Type::number: {
        simdjson::ondemand::number number;
        return check(value.get_number().get(number));
      }
      case Type::boolean:
        boolean(value, "a value");
        return;
      case Type::null:
        if (!is_null(value)) check(simdjson::N_ATOM_ERROR);
        return;
    }
  }

  void expect(simdjson::error_code error, std::string_view name, std::string_view kind) const {
    if (error == simdjson::INCORRECT_TYPE) {
      fail(std::string(name) + " is not " + std::string(kind));
    }
    check(error);
  }

  void check(simdjson::error_code error) const {
    if (error == simdjson::MEMALLOC) throw std::bad_alloc();
    if (error != simdjson::SUCCESS) {
      fail(std::string("its JSON is malformed: ") + simdjson::error_message(error));
    }
  }

  const std::size_t size_;
  std::vector<std::byte> bytes_;  // and the padding that the parser needs
  const std::string what_;
  simdjson::ondemand::parser parser_;
  std::vector<std::string_view> keys_;  // of the objects that are being read
  std::size_t depth_ = 0;
};

}  // namespace tensorizer
