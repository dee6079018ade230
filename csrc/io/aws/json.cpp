#include "io/aws/json.h"

#include "base/text.h"
#include "base/utf8.h"

namespace tensorizer {

namespace {

constexpr int kDeepest = 64;

// Takes things off the front. What does not fit makes it bad for good.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  std::optional<JsonObject> take_object() {
    JsonObject object;
    if (!take('{')) return std::nullopt;
    if (!take('}')) {
      do {
        std::string name = take_name();
        const bool fresh = object.find(name) == object.end();
        std::optional<std::string> value = take_value();
        if (!ok_ || !fresh) return std::nullopt;
        if (value) object.emplace(std::move(name), std::move(*value));
      } while (take(','));
      if (!take('}')) return std::nullopt;
    }
    skip_space();
    if (!text_.empty()) return std::nullopt;
    return object;
  }

 private:
  void skip_space() {
    const std::size_t end = text_.find_first_not_of(" \t\r\n");
    text_.remove_prefix(end == std::string_view::npos ? text_.size() : end);
  }

  bool take(char wanted) {
    skip_space();
    if (!text_.starts_with(wanted)) return false;
    text_.remove_prefix(1);
    return true;
  }

  std::string take_name() {
    std::string name = take_text();
    ok_ = ok_ && take(':');
    return name;
  }

  // Nothing for null, arrays and objects. `depth`: how many of these two it is in.
  std::optional<std::string> take_value(int depth = 0) {
    skip_space();
    if (text_.starts_with('"')) return take_text();
    if (text_.starts_with('{') || text_.starts_with('[')) {
      skip_nested(depth + 1);
      return std::nullopt;
    }
    for (const std::string_view word : {"null", "true", "false"}) {
      if (!text_.starts_with(word)) continue;
      text_.remove_prefix(word.size());
      return word == "null" ? std::nullopt : std::optional<std::string>(word);
    }
    return take_number();
  }

  void skip_nested(int depth) {
    const bool is_object = take('{');
    const char end = is_object ? '}' : ']';
    if (!is_object) take('[');
    if (depth > kDeepest) ok_ = false;
    if (!ok_ || take(end)) return;
    do {
      if (is_object) take_name();
      take_value(depth);
    } while (ok_ && take(','));
    ok_ = ok_ && take(end);
  }

  std::string take_number() {
    const std::string_view start = text_;
    if (text_.starts_with('-')) text_.remove_prefix(1);
    const bool zero = text_.starts_with('0');
    const std::size_t whole = take_digits();
    if (whole == 0 || (zero && whole > 1)) ok_ = false;
    if (text_.starts_with('.')) {
      text_.remove_prefix(1);
      if (take_digits() == 0) ok_ = false;
    }
    if (text_.starts_with('e') || text_.starts_with('E')) {
      text_.remove_prefix(1);
      if (text_.starts_with('+') || text_.starts_with('-')) text_.remove_prefix(1);
      if (take_digits() == 0) ok_ = false;
    }
    return std::string(start.substr(0, start.size() - text_.size()));
  }

  std::size_t take_digits() {
    std::size_t count = 0;
    while (count < text_.size() && is_digit(text_[count])) ++count;
    text_.remove_prefix(count);
    return count;
  }

  std::string take_text() {
    std::string text;
    if (!take('"')) ok_ = false;
    while (ok_ && !text_.starts_with('"')) take_character(text);
    if (ok_) text_.remove_prefix(1);
    return text;
  }

  void take_character(std::string& out) {
    if (text_.starts_with('\\')) {
      text_.remove_prefix(1);
      take_escape(out);
      return;
    }
    const std::size_t length = utf8_sequence(text_);
    ok_ = length > 0 && static_cast<unsigned char>(text_[0]) >= 0x20;
    if (!ok_) return;
    out += text_.substr(0, length);
    text_.remove_prefix(length);
  }

  void take_escape(std::string& out) {
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    const char name = text_.empty() ? '\0' : text_[0];
    if (name == 'u') return take_code_point(out);
    const std::size_t index = kNames.find(name);
    ok_ = index != std::string_view::npos;
    if (!ok_) return;
    out += kValues[index];
    text_.remove_prefix(1);
  }

  void take_code_point(std::string& out) {
    char32_t code = take_code_unit();
    if (code >= 0xD800 && code < 0xDC00) {
      ok_ = ok_ && text_.starts_with('\\');
      if (!ok_) return;
      text_.remove_prefix(1);
      const char32_t low = take_code_unit();
      ok_ = ok_ && low >= 0xDC00 && low < 0xE000;
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
      ok_ = false;
    }
    if (ok_) append_utf8(out, code);
  }

  // "uXXXX".
  char32_t take_code_unit() {
    char32_t unit = 0;
    ok_ = ok_ && text_.size() >= 5 && text_[0] == 'u';
    if (!ok_) return 0;
    for (const char digit : text_.substr(1, 4)) {
      const int value = hex_value(digit);
      if (value < 0) ok_ = false;
      unit = unit * 16 + static_cast<char32_t>(value);
    }
    text_.remove_prefix(5);
    return unit;
  }

  std::string_view text_;
  bool ok_ = true;
};

}  // namespace

std::optional<JsonObject> parse_json_object(std::string_view text) {
  return Parser(text).take_object();
}

}  // namespace tensorizer
