#include "format/name.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/utf8.h"

namespace tensorizer {

namespace {

[[noreturn]] void bad(const char* reason) { throw Error(ErrorKind::InvalidFormat, reason); }

// Reads the JSON array behind the mark. White space is space and tab: a name has no line breaks.
class NestedParser {
 public:
  explicit NestedParser(std::string_view text) : text_(text) {}

  NamePath parse() {
    NamePath path;
    expect('[');
    do {
      path.push_back(step());
    } while (accept(','));
    expect(']');
    skip_space();
    if (at_ != text_.size()) bad("has text after its JSON array");
    return path;
  }

 private:
  static constexpr const char* kNotAnArray =
      "is not a JSON array of strings and non-negative integers";

  bool done() const { return at_ == text_.size(); }

  void skip_space() {
    while (!done() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }

  bool accept(char wanted) {
    skip_space();
    if (done() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  void expect(char wanted) {
    if (!accept(wanted)) bad(kNotAnArray);
  }

  NameStep step() {
    if (accept('"')) return string();
    return integer();
  }

  std::uint64_t integer() {
    const std::size_t begin = at_;
    std::uint64_t value = 0;
    constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
    while (!done() && text_[at_] >= '0' && text_[at_] <= '9') {
      const auto digit = static_cast<std::uint64_t>(text_[at_] - '0');
      if (value > (kMax - digit) / 10) bad("has an index past 2^63");
      value = value * 10 + digit;
      ++at_;
    }
    if (at_ == begin || (text_[begin] == '0' && at_ - begin > 1)) bad(kNotAnArray);
    return value;
  }

  std::string string() {
    std::string out;
    for (;;) {
      if (done()) bad(kNotAnArray);
      const char c = text_[at_++];
      if (c == '"') return out;
      if (static_cast<unsigned char>(c) < 0x20) bad(kNotAnArray);
      if (c == '\\') {
        escape(out);
      } else {
        out += c;
      }
    }
  }

  void escape(std::string& out) {
    if (done()) bad(kNotAnArray);
    const char c = text_[at_++];
    switch (c) {
      case '"':
      case '\\':
      case '/':
        out += c;
        return;
      case 'b':
        out += '\b';
        return;
      case 'f':
        out += '\f';
        return;
      case 'n':
        out += '\n';
        return;
      case 'r':
        out += '\r';
        return;
      case 't':
        out += '\t';
        return;
      case 'u':
        break;
      default:
        bad(kNotAnArray);
    }
    char32_t code = hex4();
    if (code >= 0xd800 && code <= 0xdbff) {
      if (text_.substr(at_, 2) != "\\u") bad("has half a surrogate pair");
      at_ += 2;
      const char32_t low = hex4();
      if (low < 0xdc00 || low > 0xdfff) bad("has half a surrogate pair");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code <= 0xdfff) {
      bad("has half a surrogate pair");
    }
    append_utf8(out, code);
  }

  char32_t hex4() {
    char32_t value = 0;
    for (int i = 0; i < 4; ++i) {
      if (done()) bad(kNotAnArray);
      const char c = text_[at_++];
      value <<= 4;
      if (c >= '0' && c <= '9') {
        value |= static_cast<char32_t>(c - '0');
      } else if (c >= 'a' && c <= 'f') {
        value |= static_cast<char32_t>(c - 'a' + 10);
      } else if (c >= 'A' && c <= 'F') {
        value |= static_cast<char32_t>(c - 'A' + 10);
      } else {
        bad(kNotAnArray);
      }
    }
    return value;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

NameConflict find_equal(std::span<const std::string_view> names) {
  std::vector<std::uint32_t> order(names.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return names[a] < names[b]; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (names[order[i - 1]] == names[order[i]]) {
      return {std::min(order[i - 1], order[i]), std::max(order[i - 1], order[i]),
              "has the same name as"};
    }
  }
  return {};
}

// In the sorted order of paths, a path stands right before those inside it, and the keys of a layer
// before its indices: every conflict shows between neighbours.
NameConflict find_nested(std::span<const std::string_view> names) {
  std::vector<std::pair<NamePath, std::size_t>> paths;
  paths.reserve(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) paths.emplace_back(parse_name(names[i]), i);
  std::sort(paths.begin(), paths.end());
  for (std::size_t i = 1; i < paths.size(); ++i) {
    const auto& [before, before_at] = paths[i - 1];
    const auto& [after, after_at] = paths[i];
    const std::size_t first = std::min(before_at, after_at);
    const std::size_t second = std::max(before_at, after_at);
    std::size_t same = 0;
    while (same < before.size() && same < after.size() && before[same] == after[same]) ++same;
    if (same == before.size()) {
      return {first, second,
              same == after.size() ? "has the same name as" : "is inside, or holds, the tensor"};
    }
    if (before[same].index() != after[same].index()) {
      return {first, second, "mixes keys and indices in one layer with"};
    }
  }
  return {};
}

}  // namespace

NamePath parse_name(std::string_view name) {
  if (name.empty()) bad("is empty");
  if (!is_utf8(name)) bad("is not UTF-8");
  if (!is_nested(name)) return {std::string(name)};
  return NestedParser(name.substr(1)).parse();
}

void check_name(std::string_view name) {
  if (is_nested(name)) {
    parse_name(name);
  } else if (name.empty()) {
    bad("is empty");
  } else if (!is_utf8(name)) {
    bad("is not UTF-8");
  }
}

NameConflict find_conflict(std::span<const std::string_view> names) {
  const bool nested = std::any_of(names.begin(), names.end(), is_nested);
  return nested ? find_nested(names) : find_equal(names);
}

}  // namespace tensorizer
