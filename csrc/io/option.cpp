#include "io/option.h"

#include <algorithm>

#include "base/error.h"
#include "base/suggest.h"
#include "io/other_options.h"

namespace tensorizer {

namespace {

bool is_one_line(const std::string& text) {
  return !text.empty() && std::none_of(text.begin(), text.end(),
                                       [](char c) { return c == '\0' || c == '\n' || c == '\r'; });
}

bool has_use(const Option& option, OptionUse use) {
  return option.use == OptionUse::Any || option.use == use;
}

[[noreturn]] void throw_unknown(const std::string& name, std::span<const Option> known,
                                OptionUse use) {
  std::string listed;
  std::vector<std::string_view> names;
  for (const Option& option : known) {
    if (!has_use(option, use)) continue;
    names.push_back(option.name);
    listed += (listed.empty() ? "" : ", ") + option.name;
    if (option.name.ends_with('.')) listed += '*';
  }
  std::string question = did_you_mean(name, names);
  const std::string_view ours = our_option(name);
  if (std::ranges::find(names, ours) != names.end()) {
    question =
        ": did you mean " + quote(std::string(ours) + (ours.ends_with('.') ? "NAME" : "")) + "?";
  }
  throw Error(ErrorKind::InvalidArgument,
              "unknown option " + quote(name) +
                  (question.empty() ? "; the options here are " + listed : question));
}

void set(const Option& option, const std::string& name, const std::string& value) {
  if (option.set(name, value)) return;
  const std::string is = option.secret ? "" : " is " + quote(value) + ", and";
  throw Error(ErrorKind::InvalidArgument,
              "option " + quote(name) + is + " must be " + option.value +
                  (option.secret ? "" : did_you_mean(value, option.value)));
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

void apply_options(const OptionList& given, std::span<const Option> known, OptionUse use) {
  for (const auto& [name, value] : given) {
    const Option* match = find_option(known, name);
    if (!match) throw_unknown(name, known, use);
    if (!has_use(*match, use)) {
      throw Error(ErrorKind::InvalidArgument,
                  "option '" + match->name + "' applies when a file is " +
                      (match->use == OptionUse::Load ? "loaded" : "saved") + " only");
    }
    set(*match, name, value);
  }
}

void take_options(const OptionList& given, std::span<const Option> known) {
  for (const auto& [name, value] : given) {
    if (const Option* match = find_option(known, name)) set(*match, name, value);
  }
}

Option bool_option(const char* name, bool& is) {
  return {name, "'true' or 'false'", [&is](const std::string&, const std::string& text) {
            is = text == "true";
            return is || text == "false";
          }};
}

Option seconds_option(const char* name, double& seconds, double least) {
  return {name, "a number of seconds, such as 30, 500ms or 2m",
          [&seconds, least](const std::string&, const std::string& text) {
            seconds = parse_seconds(text).value_or(-1);
            return seconds >= least && seconds <= 1e6;
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

Option exclusive(Option option, OptionUse use, std::string unless) {
  option.use = use;
  option.exclusive_unless = std::move(unless);
  return option;
}

}  // namespace tensorizer
