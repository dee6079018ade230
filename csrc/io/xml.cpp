#include "io/xml.h"

#include "base/text.h"
#include "base/utf8.h"

namespace tensorizer {

namespace {

// A tag: the text between "<" and ">".
struct Tag {
  std::string_view inside;
  std::size_t end = 0;  // behind the ">"

  bool closes() const { return inside.starts_with('/'); }
  bool is_empty() const { return inside.ends_with('/'); }
  // Without its namespace.
  std::string_view name() const {
    std::string_view name = inside.substr(closes() ? 1 : 0);
    name = name.substr(0, name.find_first_of(" \t\r\n/"));
    return name.substr(name.find(':') + 1);  // npos + 1 is 0
  }
};

// Returns the tag that begins at `begin`; the value of an attribute may hold a ">".
std::optional<Tag> tag_at(std::string_view document, std::size_t begin) {
  char quoted_by = '\0';
  for (std::size_t at = begin + 1; at < document.size(); ++at) {
    const char c = document[at];
    if (quoted_by != '\0') {
      if (c == quoted_by) quoted_by = '\0';
    } else if (c == '"' || c == '\'') {
      quoted_by = c;
    } else if (c == '<') {
      return std::nullopt;
    } else if (c == '>') {
      return Tag{document.substr(begin + 1, at - begin - 1), at + 1};
    }
  }
  return std::nullopt;
}

// Returns the offset behind the comment or instruction that begins at `begin`; `begin` itself if
// there is none; null if it does not end.
std::optional<std::size_t> skip_aside(std::string_view document, std::size_t begin) {
  const std::string_view rest = document.substr(begin);
  std::string_view ending;
  if (rest.starts_with("<!--")) ending = "-->";
  if (rest.starts_with("<?")) ending = "?>";
  if (ending.empty()) return begin;
  const std::size_t end = rest.find(ending, ending.size() + 1);
  if (end == std::string_view::npos) return std::nullopt;
  return begin + end + ending.size();
}

std::optional<char32_t> parse_code_point(std::string_view digits) {
  const bool is_hex = digits.starts_with('x');
  if (is_hex) digits.remove_prefix(1);
  if (digits.empty() || digits.size() > 7) return std::nullopt;
  char32_t code = 0;
  for (const char digit : digits) {
    const int value = hex_value(digit);
    if (value < 0 || (!is_hex && value > 9)) return std::nullopt;
    code = code * (is_hex ? 16 : 10) + static_cast<char32_t>(value);
  }
  if (code == 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return std::nullopt;
  return code;
}

// Appends the character of "&name;". Returns false for an unknown entity.
bool append_entity(std::string& out, std::string_view name) {
  if (name.starts_with('#')) {
    const std::optional<char32_t> code = parse_code_point(name.substr(1));
    if (code) append_utf8(out, *code);
    return code.has_value();
  }
  constexpr std::pair<std::string_view, char> kKnown[] = {
      {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
  for (const auto& [known, value] : kKnown) {
    if (name != known) continue;
    out += value;
    return true;
  }
  return false;
}

std::optional<std::string> decode(std::string_view text) {
  std::string out;
  for (;;) {
    const std::size_t begin = text.find('&');
    out += text.substr(0, begin);
    if (begin == std::string_view::npos) return out;
    const std::size_t end = text.find(';', begin);
    if (end == std::string_view::npos) return std::nullopt;
    if (!append_entity(out, text.substr(begin + 1, end - begin - 1))) return std::nullopt;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

std::string xml_root(std::string_view document) {
  for (std::size_t at = 0;;) {
    at = document.find_first_not_of(" \t\r\n", at);
    if (at == std::string_view::npos || document[at] != '<') return {};
    const std::optional<std::size_t> behind = skip_aside(document, at);
    if (!behind) return {};
    if (*behind > at) {
      at = *behind;
      continue;
    }
    const std::optional<Tag> tag = tag_at(document, at);
    if (!tag || tag->closes() || tag->inside.starts_with('!')) return {};
    return std::string(tag->name());
  }
}

std::optional<std::string> xml_text(std::string_view document, std::string_view element) {
  if (xml_root(document).empty()) return std::nullopt;
  std::size_t at = document.find('<');
  while (at != std::string_view::npos) {
    const std::optional<std::size_t> behind = skip_aside(document, at);
    if (!behind) return std::nullopt;
    if (*behind > at) {
      at = document.find('<', *behind);
      continue;
    }
    const std::optional<Tag> tag = tag_at(document, at);
    if (!tag || tag->inside.starts_with('!')) return std::nullopt;
    if (tag->closes() || tag->name() != element) {
      at = document.find('<', tag->end);
      continue;
    }
    if (tag->is_empty()) return std::string();
    const std::size_t end = document.find('<', tag->end);
    if (end == std::string_view::npos) return std::nullopt;
    const std::optional<Tag> next = tag_at(document, end);
    if (!next || !next->closes() || next->name() != element) return std::nullopt;
    return decode(document.substr(tag->end, end - tag->end));
  }
  return std::nullopt;
}

}  // namespace tensorizer
