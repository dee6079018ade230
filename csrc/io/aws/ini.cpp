#include "io/aws/ini.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace tensorizer {

namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

class Parser {
 public:
  explicit Parser(const std::string& label) : label_(label) {}

  void take_line(std::string_view line) {
    ++number_;
    const std::string_view content = trimmed(line);
    if (content.empty() || content[0] == '#' || content[0] == ';') return;
    if (content.find('\0') != std::string_view::npos) refuse("holds a NUL");
    const auto indent = static_cast<std::size_t>(content.data() - line.data());
    if (setting_ != nullptr && indent > indent_) {
      go_on(content);
    } else if (content[0] == '[') {
      begin_section(content);
    } else {
      take_setting(content);
      indent_ = indent;
    }
  }

  IniFile file;

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::InvalidFormat,
                "line " + std::to_string(number_) + " of " + label_ + " " + what);
  }

  void begin_section(std::string_view content) {
    const std::size_t end = content.find(']');
    if (end == std::string_view::npos) refuse("begins with '[', but has no ']'");
    section_ = &file[std::string(trimmed(content.substr(1, end - 1)))];
    setting_ = nullptr;
  }

  void take_setting(std::string_view content) {
    if (section_ == nullptr) refuse("is in no section: a line such as '[default]' must come first");
    const std::size_t end = content.find_first_of("=:");
    if (end == 0 || end == std::string_view::npos) refuse("is neither a section nor a setting");
    name_ = lower_case(trimmed(content.substr(0, end)));
    setting_ = &(*section_)[name_];
    *setting_ = trimmed(content.substr(end + 1));
  }

  void go_on(std::string_view content) {
    if (!setting_->empty()) {
      *setting_ += '\n';
      *setting_ += content;
      return;
    }
    const std::size_t end = content.find('=');
    if (end == 0 || end == std::string_view::npos) refuse("is indented, but not a setting");
    const std::string name = lower_case(trimmed(content.substr(0, end)));
    (*section_)[name_ + "." + name] = trimmed(content.substr(end + 1));
  }

  const std::string& label_;
  std::size_t number_ = 0;
  IniSection* section_ = nullptr;
  std::string name_;
  std::string* setting_ = nullptr;  // the value of name_, which an indented line continues
  std::size_t indent_ = 0;
};

}  // namespace

IniFile parse_ini(std::string_view text, const std::string& label) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  Parser parser(label);
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    parser.take_line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return std::move(parser.file);
}

std::string get_setting(const IniSection& section, std::string_view name) {
  const auto found = section.find(name);
  return found == section.end() ? std::string() : found->second;
}

}  // namespace tensorizer
