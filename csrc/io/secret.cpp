#include "io/secret.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <unordered_map>

#include "base/error.h"
#include "base/text.h"

namespace tensorizer {

namespace {

constexpr std::string_view kVariable = "env:";
constexpr std::string_view kFile = "file:";
constexpr std::string_view kNamed = "named:";

struct NamedSecrets {
  std::mutex mutex;
  std::unordered_map<std::string, std::string> secrets;
};

// Never destroyed: a load may still run when the process ends.
NamedSecrets& named_secrets() {
  static auto* const named = new NamedSecrets;
  return *named;
}

std::string from_environment(const std::string& name) {
  const char* found = std::getenv(name.c_str());
  if (found != nullptr) return found;
  throw Error(ErrorKind::InvalidArgument,
              "a secret shall come from the environment, which has no " + quote(name));
}

std::string from_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) {
    throw system_error(errno == 0 ? EIO : errno, "cannot read a secret from", path);
  }
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

std::string from_names(const std::string& name) {
  NamedSecrets& named = named_secrets();
  const std::lock_guard lock(named.mutex);
  const auto found = named.secrets.find(name);
  if (found != named.secrets.end()) return found->second;
  throw Error(ErrorKind::InvalidArgument,
              "no secret has the name " + quote(name) + ": set_secret() gives it one");
}

// Where the parts of a URI lie that may be secret: what stands between its scheme and its host, and
// what follows its path.
struct Parts {
  std::size_t begin = 0;
  std::size_t host = 0;
  std::size_t end = 0;
};

// Whether it is no beginning of "user:password": there is no colon in it, or what follows the last
// one is a port, or the end of an address of IPv6.
bool may_be_host(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == text.npos || text.ends_with(']')) return true;
  const std::string_view port = text.substr(colon + 1);
  return colon > 0 && !port.empty() && std::all_of(port.begin(), port.end(), is_digit);
}

Parts split(std::string_view uri) {
  const std::size_t scheme = uri.find("://");
  // In the name of a file these characters mean nothing.
  if (scheme == std::string_view::npos || uri.starts_with("file://")) return {0, 0, uri.size()};
  const std::size_t begin = scheme + 3;
  std::size_t path = std::min(uri.find_first_of("/?#", begin), uri.size());
  std::size_t at = uri.substr(0, path).rfind('@');
  if ((at == uri.npos || at < begin) && !may_be_host(uri.substr(begin, path - begin))) {
    // A password with one of those three characters, which is not escaped.
    at = uri.rfind('@');
    if (at != uri.npos && at > path) path = std::min(uri.find_first_of("/?#", at), uri.size());
  }
  const std::size_t host = at == uri.npos || at < begin ? begin : at + 1;
  return {begin, host, std::min(uri.find_first_of("?#", path), uri.size())};
}

}  // namespace

bool names_secret(std::string_view value) {
  return value.starts_with(kVariable) || value.starts_with(kFile) || value.starts_with(kNamed);
}

std::string resolve_secret(const std::string& value) {
  if (value.starts_with(kVariable)) return from_environment(value.substr(kVariable.size()));
  if (value.starts_with(kFile)) return from_file(value.substr(kFile.size()));
  if (value.starts_with(kNamed)) return from_names(value.substr(kNamed.size()));
  return value;
}

void set_secret(const std::string& name, std::string secret) {
  NamedSecrets& named = named_secrets();
  const std::lock_guard lock(named.mutex);
  if (secret.empty()) {
    named.secrets.erase(name);
  } else {
    named.secrets[name] = std::move(secret);
  }
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
