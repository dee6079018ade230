#include "io/redis/reply.h"

#include "io/retry.h"

namespace tensorizer {

namespace {

struct Meaning {
  std::string_view code;  // what the server's text starts with
  ErrorKind kind;
  bool temporary;
};

constexpr Meaning kMeanings[] = {
    {"NOAUTH", ErrorKind::PermissionDenied, false},
    {"WRONGPASS", ErrorKind::PermissionDenied, false},
    {"NOPERM", ErrorKind::PermissionDenied, false},
    {"DENIED", ErrorKind::PermissionDenied, false},
    {"READONLY", ErrorKind::PermissionDenied, false},
    {"LOADING", ErrorKind::Unavailable, true},
    {"BUSY", ErrorKind::Unavailable, true},
    {"MASTERDOWN", ErrorKind::Unavailable, true},
    {"ERR max number of clients", ErrorKind::Unavailable, true},
    {"OOM", ErrorKind::OutOfSpace, false},
    {"MISCONF", ErrorKind::OutOfSpace, false},
    {"WRONGTYPE", ErrorKind::InvalidFormat, false},
    {"ERR DB index", ErrorKind::InvalidArgument, false},
};

constexpr std::string_view kClusterCodes[] = {"MOVED", "ASK", "CROSSSLOT", "CLUSTERDOWN"};

// A refused EXEC. The reason follows.
constexpr std::string_view kAborted = "EXECABORT Transaction discarded because of: ";

bool has_code(std::string_view text, std::string_view code) {
  return text.starts_with(code) && (text.size() == code.size() || text[code.size()] == ' ');
}

}  // namespace

void throw_redis_cluster(const std::string& label) {
  throw Error(
      ErrorKind::InvalidArgument,
      label +
          " is in a Redis Cluster, where each server has some of the keys, so that the keys "
          "of a file cannot be replaced in one step: use a standalone server");
}

void throw_redis_error(std::string_view text, const std::string& label) {
  for (const std::string_view code : kClusterCodes) {
    if (has_code(text, code)) throw_redis_cluster(label);
  }
  const std::string what = "the server of " + label + " says " + quote(text);
  if (text.starts_with(kAborted)) text.remove_prefix(kAborted.size());
  for (const Meaning& meaning : kMeanings) {
    if (!has_code(text, meaning.code)) continue;
    if (meaning.temporary) throw TemporaryError(meaning.kind, what);
    throw Error(meaning.kind, what);
  }
  throw Error(ErrorKind::Unavailable, what);
}

void throw_login_error(std::string_view text, const std::string& label) {
  const std::string_view code = text.substr(0, text.find(' '));
  if (code == "LOADING" || code == "BUSY" || text.starts_with("ERR max number of clients")) {
    throw_redis_error(text, label);
  }
  throw Error(
      ErrorKind::PermissionDenied,
      "the server of " + label +
          " rejects the login: the user or the password is wrong, or the server wants none");
}

}  // namespace tensorizer
