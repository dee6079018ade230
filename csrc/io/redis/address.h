// The parsed URI of a file in Redis, combined with its options.
#pragma once

#include <cstdint>
#include <string>

#include "io/redis/options.h"

namespace tensorizer {

struct RedisAddress {
  std::string host;
  std::uint16_t port = 6379;
  bool tls = false;
  std::string socket;  // the path of a Unix domain socket; empty: use host and port
  std::string user;
  std::string password;  // empty: no login
  int database = 0;
  std::string prefix;  // of the keys
  std::string label;   // for messages: the URI without secrets, quoted
};

// Parses a URI, and resolves references to secrets in the options. Throws Error(InvalidArgument)
// for a malformed URI, and for a user without a password.
RedisAddress redis_address(const std::string& uri, const RedisOptions& options);

}  // namespace tensorizer
