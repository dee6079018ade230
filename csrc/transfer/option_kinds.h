// The kinds of options: each checks the text that it is given, and sets what it is about.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/number.h"
#include "io/secret.h"
#include "transfer/options.h"

namespace tensorizer {

struct Option {
  std::string name;   // one that ends with a dot is followed by a name of the caller's choice
  const char* value;  // what a value looks like, for messages
  std::function<bool(const std::string& name, const std::string& value)> set;
  bool secret = false;  // its value is in no message
  // Whether a value of it names a secret, instead of being one.
  bool (*names_secret)(std::string_view value) = tensorizer::names_secret;
};

// The option of this name, or null.
const Option* find_option(std::span<const Option> known, const std::string& name);

// Sets what is given. Throws Error(InvalidArgument) for an unknown name, listing the known ones,
// and for a malformed value.
void apply_options(const OptionList& given, std::span<const Option> known);

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

}  // namespace tensorizer
