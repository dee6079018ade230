// Options as they travel: names and values as text, checked strictly.
//
// Each folder of places declares the options that it takes, next to the struct that they fill.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/number.h"
#include "io/secret.h"
#include "tensorizer_ops/options.h"

namespace tensorizer {

enum class OptionUse : std::uint8_t { Any, Load, Save };

struct Option {
  std::string name;   // one that ends with a dot is followed by a name of the caller's choice
  const char* value;  // what a value looks like, for messages
  // Returns false for a malformed value.
  std::function<bool(const std::string& name, const std::string& value)> set;
  bool secret = false;  // its value is in no message
  // Whether a value of it names a secret, instead of being one.
  bool (*names_secret)(std::string_view value) = tensorizer::names_secret;
  OptionUse use = OptionUse::Any;
  // Set where places that do not know the option refuse it instead of passing over it, because it
  // changes what is loaded or saved. Its value is the one that changes nothing.
  std::optional<std::string> exclusive_unless{};
};

// The option of this name, or null.
const Option* find_option(std::span<const Option> known, const std::string& name);

// Sets what is given. Throws Error(InvalidArgument) for an unknown name, listing the known ones
// that have this use, for an option of the other use, and for a malformed value.
void apply_options(const OptionList& given, std::span<const Option> known, OptionUse use);

// Sets those of `given` that are known, and passes over the others.
void take_options(const OptionList& given, std::span<const Option> known);

// The same, into a new struct: `declare` returns options that set its members.
template <typename Options>
Options options_from(const OptionList& given, std::vector<Option> (*declare)(Options&)) {
  Options options;
  take_options(given, declare(options));
  return options;
}

// Leaves `number` as it is where the text is none from `least` to `most`.
template <typename Number>
bool take_number(const std::string& text, Number& number, std::uint64_t least,
                 std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) {
  const std::optional<std::uint64_t> given = parse_number(text);
  if (!given || *given < least || *given > most) return false;
  number = static_cast<Number>(*given);
  return true;
}

template <typename Number>
Option number_option(const char* name, const char* value, Number& number, std::uint64_t least,
                     std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) {
  return {name, value, [&number, least, most](const std::string&, const std::string& text) {
            return take_number(text, number, least, most);
          }};
}

Option bool_option(const char* name, bool& is);
// Of `least` or more.
Option seconds_option(const char* name, double& seconds, double least);
// Anything but nothing, in one line. `value` says what it is.
Option text_option(const char* name, const char* value, std::string& text);
Option secret_option(const char* name, std::string& text);

// The same option, for one use only, which other places refuse.
Option exclusive(Option option, OptionUse use, std::string unless = {});

}  // namespace tensorizer
