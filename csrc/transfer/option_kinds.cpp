#include "transfer/option_kinds.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace tensorizer {

namespace {

bool is_one_line(const std::string& text) {
  return !text.empty() && std::none_of(text.begin(), text.end(),
                                       [](char c) { return c == '\0' || c == '\n' || c == '\r'; });
}

}  // namespace

const Option* find_option(std::span<const Option> known, const std::string& name) {
  for (const Option& option : known) {
    if (option.name.ends_with('.') ? name.starts_with(option.name) : name == option.name) {
      return &option;
    }
  }
  return nullptr;
}

void apply_options(const OptionList& given, std::span<const Option> known) {
  for (const auto& [name, value] : given) {
    const Option* match = find_option(known, name);
    if (!match) {
      std::string names;
      for (const Option& option : known) {
        names += (names.empty() ? "" : ", ") + option.name;
        if (option.name.ends_with('.')) names += '*';
      }
      throw Error(ErrorKind::InvalidArgument,
                  "unknown option " + quote(name) + "; the options here are " + names);
    }
    if (!match->set(name, value)) {
      const std::string is = match->secret ? "" : " is " + quote(value) + ", and";
      throw Error(ErrorKind::InvalidArgument,
                  "option " + quote(name) + is + " must be " + match->value);
    }
  }
}

Option bool_option(const char* name, bool& is) {
  return {name, "'true' or 'false'", [&is](const std::string&, const std::string& text) {
            is = text == "true";
            return is || text == "false";
          }};
}

Option seconds_option(const char* name, double& seconds, double least) {
  return {name, "a number of seconds",
          [&seconds, least](const std::string&, const std::string& text) {
            const char* end = text.data() + text.size();
            const auto [stopped, error] = std::from_chars(text.data(), end, seconds);
            return error == std::errc() && stopped == end && seconds >= least && seconds <= 1e6;
          }};
}

Option text_option(const char* name, const char* value, std::string& text) {
  return {name, value, [&text](const std::string&, const std::string& given) {
            text = given;
            return is_one_line(given);
          }};
}

Option secret_option(const char* name, std::string& text) {
  Option option = text_option(name, "one line of text, or env:NAME, file:PATH or named:NAME", text);
  option.secret = true;
  return option;
}

}  // namespace tensorizer
