// Reads JSON that is signed: what two parsers could understand differently is refused.
//
// Every byte is checked, also of values that nobody asks for: keys that an object has twice, deep
// nesting, and more than one value are errors.
#pragma once

#include <simdjson.h>

#include <algorithm>
#include <cstdint>
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

  // Reads the first `size` of `padded` bytes, at least kPadding more. Messages begin with `what`.
  // The memory must outlive this object, and the strings that it returns live as long as it.
  StrictJson(ConstBytes padded, std::size_t size, std::string what)
      : text_(reinterpret_cast<const char*>(padded.data()), size, padded.size()),
        what_(std::move(what)) {
    // The parser itself must not get to its end.
    check(parser_.allocate(size, kDeepest + 2));
  }

  static constexpr std::size_t kPadding = simdjson::SIMDJSON_PADDING;

  // Calls member(key, value) for each member of the only value of the text, as object() does.
  template <typename Member>
  void root(Unknown unknown, const Member& member) {
    simdjson::ondemand::document document;
    check(parser_.iterate(text_).get(document));
    Value value;
    if (document.get_value().get(value) != simdjson::SUCCESS) fail("it is not a JSON object");
    object(value, "it", unknown, member);
    if (const char* more = nullptr; document.current_location().get(more) == simdjson::SUCCESS) {
      fail("it has more than one JSON value");
    }
  }

  // Calls member(key, value) for each member, which returns false for keys that it does not know
  // and otherwise reads the value. `name` names the object in messages.
  template <typename Member>
  void object(Value value, std::string_view name, Unknown unknown, const Member& member) {
    simdjson::ondemand::object members;
    enter();
    expect(value.get_object().get(members), name, "a JSON object");
    const std::size_t first = keys_.size();
    for (auto each : members) {
      simdjson::ondemand::field field;
      check(std::move(each).get(field));
      std::string_view key;
      check(field.unescaped_key().get(key));
      keys_.push_back(key);
      if (member(key, field.value())) continue;
      if (unknown == Unknown::Refused) {
        fail(std::string(name) + " has the key " + quote(key) + ", which the format does not have");
      }
      ignore(field.value());
    }
    const auto begin = keys_.begin() + static_cast<std::ptrdiff_t>(first);
    std::sort(begin, keys_.end());
    if (const auto twice = std::adjacent_find(begin, keys_.end()); twice != keys_.end()) {
      fail(std::string(name) + " has the key " + quote(*twice) + " twice");
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
    std::string_view text;
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
        return object(value, "an object", Unknown::Ignored,
                      [](std::string_view, Value&) { return false; });
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

  const simdjson::padded_string_view text_;
  const std::string what_;
  simdjson::ondemand::parser parser_;
  std::vector<std::string_view> keys_;  // of the objects that are being read
  std::size_t depth_ = 0;
};

}  // namespace tensorizer
