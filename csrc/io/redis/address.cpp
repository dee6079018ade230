#include "io/redis/address.h"

#include <limits>

#include "base/error.h"
#include "base/number.h"
#include "io/secret.h"
#include "io/uri.h"

namespace tensorizer {

namespace {

class Parser {
 public:
  explicit Parser(const std::string& uri) { address_.label = quote(without_secrets(uri), 4096); }

  RedisAddress parse(std::string_view rest) {
    if (rest.find_first_of("?#") != std::string_view::npos) {
      refuse("has a '?' or a '#', and a redis:// URI has no parameters: use options");
    }
    const std::size_t slash = std::min(rest.find('/'), rest.size());
    take_prefix(rest.substr(slash));
    rest = rest.substr(0, slash);
    const std::size_t at = rest.rfind('@');
    if (at != std::string_view::npos) {
      take_login(rest.substr(0, at));
      rest.remove_prefix(at + 1);
    }
    take_host(rest);
    return std::move(address_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::InvalidArgument, address_.label + " " + what);
  }

  // All of the path, as it stands: an escape in it is part of the keys.
  void take_prefix(std::string_view path) {
    const std::size_t begin = std::min(path.find_first_not_of('/'), path.size());
    address_.prefix = path.substr(begin);
    if (address_.prefix.empty()) refuse("names no prefix of keys: redis://host/prefix");
  }

  void take_login(std::string_view login) {
    const std::size_t colon = std::min(login.find(':'), login.size());
    const auto user = percent_decoded(login.substr(0, colon));
    const auto password = percent_decoded(login.substr(std::min(colon + 1, login.size())));
    if (!user || !password) {
      refuse("has a user or a password with a '%' that two hexadecimal digits do not follow");
    }
    address_.user = *user;
    address_.password = *password;
  }

  void take_host(std::string_view text) {
    std::size_t end = text.find(':');
    if (text.starts_with('[')) {  // an address of IPv6
      end = text.find(']');
      if (end == std::string_view::npos) refuse("has a '[' in its host and no ']'");
      address_.host = text.substr(1, end - 1);
      text.remove_prefix(end + 1);
    } else {
      address_.host = text.substr(0, end);
      text.remove_prefix(address_.host.size());
    }
    if (address_.host.empty()) refuse("names no host: redis://host/prefix");
    if (text.empty()) return;
    const auto port = text.starts_with(':') ? parse_number(text.substr(1)) : std::nullopt;
    if (!port || *port == 0 || *port > std::numeric_limits<std::uint16_t>::max()) {
      refuse("has a port that is no number from 1 to 65535");
    }
    address_.port = static_cast<std::uint16_t>(*port);
  }

  RedisAddress address_;
};

}  // namespace

RedisAddress redis_address(const std::string& uri, const RedisOptions& options) {
  RedisAddress address = Parser(uri).parse(split_uri(uri).rest);
  if (!options.user.empty()) address.user = resolve_secret(options.user);
  if (!options.password.empty()) address.password = resolve_secret(options.password);
  address.database = options.database;
  if (!address.user.empty() && address.password.empty()) {
    throw Error(ErrorKind::InvalidArgument,
                address.label + " has a user and no password: option 'redis_password' names one");
  }
  return address;
}

}  // namespace tensorizer
