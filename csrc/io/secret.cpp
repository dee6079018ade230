#include "io/secret.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>

#include "base/error.h"

namespace tensorizer {

namespace {

constexpr std::string_view kVariable = "env:";
constexpr std::string_view kFile = "file:";

// Where the parts of a URI lie that may be secret: what stands between its scheme and its host, and
// what follows its path.
struct Parts {
  std::size_t begin = 0;
  std::size_t host = 0;
  std::size_t end = 0;
};

Parts split(std::string_view uri) {
  const std::size_t scheme = uri.find("://");
  // In the name of a file these characters mean nothing.
  if (scheme == std::string_view::npos || uri.starts_with("file://")) return {0, 0, uri.size()};
  const std::size_t begin = scheme + 3;
  const std::size_t path = std::min(uri.find_first_of("/?#", begin), uri.size());
  const std::size_t at = uri.substr(0, path).rfind('@');
  const std::size_t host = at == std::string_view::npos || at < begin ? begin : at + 1;
  return {begin, host, std::min(uri.find_first_of("?#", path), uri.size())};
}

}  // namespace

bool names_secret(std::string_view value) {
  return value.starts_with(kVariable) || value.starts_with(kFile);
}

std::string resolve_secret(const std::string& value) {
  if (value.starts_with(kVariable)) {
    const std::string name = value.substr(kVariable.size());
    const char* found = std::getenv(name.c_str());
    if (found == nullptr) {
      throw Error(ErrorKind::InvalidArgument,
                  "a secret shall come from the environment, which has no " + quote(name));
    }
    return found;
  }
  if (!value.starts_with(kFile)) return value;
  const std::string path = value.substr(kFile.size());
  errno = 0;
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) {
    throw system_error(errno == 0 ? EIO : errno, "cannot read a secret from", path);
  }
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

bool holds_secret(std::string_view uri) {
  const Parts parts = split(uri);
  return parts.host > parts.begin || uri.substr(parts.end).starts_with('?');
}

std::string without_secrets(std::string_view uri) {
  const Parts parts = split(uri);
  std::string text(uri.substr(0, parts.begin));
  text += uri.substr(parts.host, parts.end - parts.host);
  return uri.substr(parts.end).starts_with('?') ? text + "?..." : text;
}

}  // namespace tensorizer
