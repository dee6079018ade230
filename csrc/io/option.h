// Options as pairs of texts (name and value), which are parsed strictly.
//
// Each folder of io declares the options that it takes, next to the struct that they fill.
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
  std::string name;   // if it ends with a dot, the caller appends any name
  const char* value;  // describes a valid value, for messages
  // Returns false for a malformed value.
  std::function<bool(const std::string& name, const std::string& value)> set;
  bool secret = false;  // messages do not show the value
  // Returns true if a value is the name of a secret, rather than the secret itself.
  bool (*names_secret)(std::string_view value) = tensorizer::names_secret;
  OptionUse use = OptionUse::Any;
  // Set for an option that changes what is loaded or saved: other folders reject it instead of
  // ignoring it. The value here is the one that has no effect, which they accept.
  std::optional<std::string> exclusive_unless{};
};

// Returns the option of this name, or null.
const Option* find_option(std::span<const Option> known, const std::string& name);

// Sets all options in `given`. Throws Error(InvalidArgument) for an unknown name (the message lists
// the known ones that have this use), for an option of the other use, and for a malformed value.
void apply_options(const OptionList& given, std::span<const Option> known, OptionUse use);

// Sets the options of `given` that are known, and ignores the others. Throws
// Error(InvalidArgument) for a malformed value.
void take_options(const OptionList& given, std::span<const Option> known);

// Returns a new struct filled by take_options(). `declare` returns the options that set its
// members.
template <typename Options>
Options options_from(const OptionList& given, std::vector<Option> (*declare)(Options&)) {
  Options options;
  take_options(given, declare(options));
  return options;
}

// Parses a number from `least` to `most`. Returns false and leaves `number` unchanged for any other
// text.
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

// Accepts units of bytes.
template <typename Number>
Option bytes_option(const char* name, const char* value, Number& number, std::uint64_t least,
                    std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) {
  return {name, value, [&number, least, most](const std::string&, const std::string& text) {
            const std::optional<std::uint64_t> given = parse_bytes(text);
            if (!given || *given < least || *given > most) return false;
            number = static_cast<Number>(*given);
            return true;
          }};
}

Option bool_option(const char* name, bool& is);
// Accepts `least` to a million seconds, and units of time.
Option seconds_option(const char* name, double& seconds, double least);
// Accepts any text of one line that is not empty. `value` describes it, for messages.
Option text_option(const char* name, const char* value, std::string& text);
Option secret_option(const char* name, std::string& text);

// Returns the option restricted to one use, and rejected by other folders unless its value is
// `unless`.
Option exclusive(Option option, OptionUse use, std::string unless = {});

}  // namespace tensorizer
