#include "io/redis/address.h"

#include <sys/un.h>

#include <algorithm>

#include "base/error.h"
#include "base/number.h"
#include "base/text.h"
#include "io/secret.h"
#include "io/uri.h"
#include "io/url.h"

namespace tensorizer {

namespace {

constexpr std::uint64_t kMostDatabase = 1 << 30;
constexpr std::string_view kDefaultPort = ":6379";

// Only the host and the port are parsed by libcurl, which connects to them. For the rest its rules
// are others: it ends a login at the first '@' and not at the last one, takes the first folder of a
// socket's path for a host, and normalizes paths, which are parts of keys here.
class Parser {
 public:
  explicit Parser(const std::string& uri) { address_.label = quote(without_secrets(uri), 4096); }

  RedisAddress parse(const Uri& uri) {
    RedisAddress address = parse_folder(uri);
    if (address.prefix.empty()) refuse("names no prefix of keys: " + form());
    return address;
  }

  // Takes a URI without prefix, too, which all files on the server are below.
  RedisAddress parse_folder(const Uri& uri) {
    scheme_ = uri.scheme;
    if (scheme_ == "unix") {
      take_unix(uri.rest);
    } else if (scheme_ == "redis" || scheme_ == "rediss") {
      address_.tls = scheme_ == "rediss";
      take_network(uri.rest);
    } else {
      refuse("has a scheme that is not one of Redis");
    }
    return address_;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::InvalidArgument, address_.label + " " + what);
  }

  std::string form() const {
    return scheme_ == "unix" ? "unix:///path/to/socket?prefix=PREFIX" : scheme_ + "://host/prefix";
  }

  // [user:password@]host[:port]/prefix
  void take_network(std::string_view rest) {
    if (rest.find_first_of("?#") != std::string_view::npos) {
      refuse("has a '?' or a '#', and a URI of this scheme has no parameters: use options");
    }
    const std::size_t slash = std::min(rest.find('/'), rest.size());
    take_prefix(rest.substr(slash));
    rest = rest.substr(0, slash);
    const std::size_t at = rest.rfind('@');
    if (at != std::string_view::npos) {
      take_login(rest.substr(0, at));
      rest.remove_prefix(at + 1);
    }
    if (rest.empty() || rest.starts_with(':')) refuse("names no host: " + form());
    address_.url = server_url(address_.tls ? "https" : "http", std::string(rest),
                              std::string(kDefaultPort.substr(1)), address_.label);
  }

  // [user:password@]/path/to/socket?prefix=PREFIX[&db=N]
  void take_unix(std::string_view rest) {
    if (rest.find('#') != std::string_view::npos) refuse("has a '#': write %23");
    const std::size_t question = std::min(rest.find('?'), rest.size());
    const std::string_view path = rest.substr(0, question);
    const std::size_t slash = std::min(path.find('/'), path.size());
    const std::string_view login = path.substr(0, slash);
    if (!login.empty()) {
      if (!login.ends_with('@')) refuse("names a host, but a socket is on this machine: " + form());
      take_login(login.substr(0, login.size() - 1));
    }
    take_socket(path.substr(slash));
    take_parameters(rest.substr(std::min(question + 1, rest.size())));
  }

  void take_socket(std::string_view path) {
    address_.socket = decoded(path, "a path");
    const std::string& socket = address_.socket;
    if (socket.empty() || socket.ends_with('/')) refuse("names no socket: " + form());
    constexpr std::size_t kMost = sizeof(sockaddr_un::sun_path) - 1;
    if (socket.size() > kMost) {
      refuse("names a socket whose path has more than " + std::to_string(kMost) + " bytes");
    }
  }

  // Messages do not show names of parameters: an unknown one may be a secret.
  void take_parameters(std::string_view text) {
    bool has_database = false;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('&'), text.size());
      const std::string_view parameter = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      const std::size_t equals = std::min(parameter.find('='), parameter.size());
      const std::string_view name = parameter.substr(0, equals);
      const std::string value =
          decoded(parameter.substr(std::min(equals + 1, parameter.size())), "a parameter");
      if (name == "prefix" && address_.prefix.empty()) {
        address_.prefix = value;
      } else if (name == "db" && !has_database) {
        const auto number = parse_number(value);
        if (!number || *number > kMostDatabase)
          refuse("has a 'db' that is not the number of a database");
        address_.database = static_cast<int>(*number);
        has_database = true;
      } else {
        refuse(
            "has a parameter that is not 'prefix' or 'db', or one of them twice; user and "
            "password are the options 'redis_user' and 'redis_password'");
      }
    }
  }

  std::string decoded(std::string_view text, const std::string& what) const {
    const auto plain = percent_decoded(text);
    if (!plain) refuse("has " + what + " with a '%' not followed by two hexadecimal digits");
    if (plain->find('\0') != std::string::npos) refuse("has " + what + " with a NUL (%00)");
    return *plain;
  }

  // The prefix is the whole path, not unescaped: a "%" in it is part of the keys.
  void take_prefix(std::string_view path) {
    const std::size_t begin = std::min(path.find_first_not_of('/'), path.size());
    address_.prefix = path.substr(begin);
  }

  void take_login(std::string_view login) {
    const std::size_t colon = std::min(login.find(':'), login.size());
    const auto user = percent_decoded(login.substr(0, colon));
    const auto password = percent_decoded(login.substr(std::min(colon + 1, login.size())));
    if (!user || !password) {
      refuse("has a user or a password with a '%' not followed by two hexadecimal digits");
    }
    address_.user = *user;
    address_.password = *password;
  }

  std::string scheme_;
  RedisAddress address_;
};

std::string path_of(const std::string& scheme, const RedisAddress& address) {
  if (!address.socket.empty()) return scheme + "://" + address.socket + '/' + address.prefix;
  // As libcurl reads it: "http://host:port/".
  std::string server = lower_case(address.url.substr(address.url.find("://")));
  if (server.ends_with('/')) server.pop_back();
  if (server.ends_with(kDefaultPort)) server.resize(server.size() - kDefaultPort.size());
  return scheme + server + '/' + address.prefix;
}

}  // namespace

std::string redis_path(const std::string& uri) {
  const Uri split = split_uri(uri);
  return path_of(split.scheme, Parser(uri).parse_folder(split));
}

std::string redis_identity(const std::string& uri) {
  const Uri split = split_uri(uri);
  const RedisAddress address = Parser(uri).parse_folder(split);
  return path_of(split.scheme, address) + '\n' + std::to_string(address.database);
}

RedisAddress redis_address(const std::string& uri, const RedisOptions& options) {
  RedisAddress address = Parser(uri).parse(split_uri(uri));
  if (!options.user.empty()) address.user = resolve_secret(options.user);
  if (!options.password.empty()) address.password = resolve_secret(options.password);
  if (options.database >= 0) address.database = options.database;
  if (!address.user.empty() && address.password.empty()) {
    throw Error(ErrorKind::InvalidArgument,
                address.label + " has a user but no password: set option 'redis_password'");
  }
  return address;
}

}  // namespace tensorizer
