#include "io/uri.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <vector>

#include "base/environment.h"
#include "base/error.h"
#include "base/number.h"
#include "base/text.h"

namespace tensorizer {

namespace {

std::optional<int> parse_descriptor_number(std::string_view digits) {
  const std::optional<std::uint64_t> number = parse_number(digits);
  if (!number || *number > std::numeric_limits<int>::max()) return std::nullopt;
  return static_cast<int>(*number);
}

// Returns the home directory of `user`, or of the process's own user if `user` is empty; empty if
// it is unknown.
std::string home_directory(const std::string& user) {
  if (user.empty()) {
    if (std::string home = environment("HOME"); !home.empty()) return home;
  }
  std::vector<char> buffer(1024);
  for (;;) {
    passwd entry;
    passwd* found = nullptr;
    const int status = user.empty()
                           ? getpwuid_r(getuid(), &entry, buffer.data(), buffer.size(), &found)
                           : getpwnam_r(user.c_str(), &entry, buffer.data(), buffer.size(), &found);
    if (status == ERANGE && buffer.size() < (1 << 20)) {
      buffer.resize(buffer.size() * 2);
    } else if (status != EINTR) {
      return found == nullptr ? std::string() : found->pw_dir;
    }
  }
}

}  // namespace

std::size_t scheme_length(std::string_view uri) {
  if (uri.empty() || !is_letter(uri[0])) return 0;
  std::size_t length = 1;
  while (length < uri.size()) {
    const char c = uri[length];
    if (!is_letter(c) && !is_digit(c) && c != '+' && c != '.' && c != '-') break;
    ++length;
  }
  return uri.substr(length).starts_with("://") ? length : 0;
}

bool has_literal_names(std::string_view scheme) {
  const std::string name = lower_case(scheme);
  return name == "file" || name == "s3" || name == "gs" || name == "az" || name == "hf";
}

std::size_t path_end(std::string_view uri) {
  const std::string_view scheme = uri.substr(0, scheme_length(uri));
  if (scheme.empty() || has_literal_names(scheme)) return uri.size();
  return std::min(uri.find_first_of("?#"), uri.size());
}

Uri split_uri(std::string_view uri) {
  if (uri.empty()) throw Error(ErrorKind::InvalidArgument, "the path is empty");
  const std::size_t length = scheme_length(uri);
  if (uri.find('\0') != std::string_view::npos) {
    throw Error(ErrorKind::InvalidArgument,
                length == 0 ? "the path " + quote(uri) + " holds a NUL"
                            : "the " + std::string(uri.substr(0, length)) + ":// URI holds a NUL");
  }
  if (length > 0) {
    return {lower_case(uri.substr(0, length)), std::string(uri.substr(length + 3))};
  }
  if (uri.starts_with("fd:")) return {"fd", std::string(uri.substr(3))};
  return {"", std::string(uri)};
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string decoded;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      decoded += text[at];
      continue;
    }
    const int high = at + 2 < text.size() ? hex_value(text[at + 1]) : -1;
    const int low = at + 2 < text.size() ? hex_value(text[at + 2]) : -1;
    if (high < 0 || low < 0) return std::nullopt;
    decoded += static_cast<char>(high * 16 + low);
    at += 2;
  }
  return decoded;
}

std::string escape_uri(std::string_view text, bool keep_slashes) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string escaped;
  for (const char c : text) {
    const bool plain = is_letter(c) || is_digit(c) || c == '-' || c == '.' || c == '_' ||
                       c == '~' || (c == '/' && keep_slashes);
    const auto byte = static_cast<unsigned char>(c);
    if (plain) {
      escaped += c;
    } else {
      escaped += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return escaped;
}

std::string escape_query(const NamedTexts& query) {
  NamedTexts escaped;
  for (const auto& [name, value] : query) {
    escaped.emplace_back(escape_uri(name, false), escape_uri(value, false));
  }
  std::sort(escaped.begin(), escaped.end());
  std::string text;
  for (const auto& [name, value] : escaped) {
    text += (text.empty() ? "" : "&") + name;
    text += "=" + value;
  }
  return text;
}

std::string key_beside(const std::string& uri, const std::string& name) {
  return uri.substr(0, uri.rfind('/') + 1) + name;
}

std::optional<std::string> last_of_key(const std::string& uri) {
  const std::string name = uri.substr(uri.rfind('/') + 1);
  return name.empty() ? std::nullopt : std::optional(name);
}

std::string decode_file_uri(std::string_view rest) {
  const std::size_t slash = rest.find('/');
  const std::string host = lower_case(rest.substr(0, slash));
  if (slash == std::string_view::npos || (!host.empty() && host != "localhost")) {
    throw Error(ErrorKind::InvalidArgument,
                "a file:// URI names a file of this machine by its whole path: file:///path or "
                "file://localhost/path");
  }
  std::optional<std::string> path = percent_decoded(rest.substr(slash));
  if (!path) {
    throw Error(ErrorKind::InvalidArgument, "the URI " + quote("file://" + std::string(rest)) +
                                                " has a '%' that is not followed by two "
                                                "hexadecimal digits; write a '%' itself as %25");
  }
  if (path->find('\0') != std::string::npos) {
    throw Error(ErrorKind::InvalidArgument,
                "the URI " + quote("file://" + std::string(rest)) + " holds a NUL (%00)");
  }
  return *std::move(path);
}

std::string expand_home(const std::string& path) {
  if (!path.starts_with('~')) return path;
  const std::size_t end = path.find('/');
  std::string home = home_directory(path.substr(1, end == std::string::npos ? end : end - 1));
  if (home.empty()) return path;
  return end == std::string::npos ? home : home + path.substr(end);
}

std::string local_path(const Uri& uri) {
  return uri.scheme.empty() ? expand_home(uri.rest) : decode_file_uri(uri.rest);
}

int parse_descriptor(std::string_view rest) {
  const std::optional<int> number = parse_descriptor_number(rest);
  if (!number) {
    throw Error(ErrorKind::InvalidArgument, quote("fd:" + std::string(rest)) +
                                                " is not a descriptor: write fd:N with a number");
  }
  return *number;
}

int descriptor_alias(std::string_view path) {
  if (path == "/dev/stdin") return 0;
  if (path == "/dev/stdout") return 1;
  if (path == "/dev/stderr") return 2;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (path.starts_with(folder) && path.size() > folder.size()) {
      return parse_descriptor_number(path.substr(folder.size())).value_or(-1);
    }
  }
  return -1;
}

}  // namespace tensorizer
