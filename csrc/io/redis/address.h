// What the URI of a file in Redis and its options name.
#pragma once

#include <cstdint>
#include <string>

#include "io/redis/options.h"

namespace tensorizer {

struct RedisAddress {
  std::string host;
  std::uint16_t port = 6379;
  bool tls = false;
  std::string socket;  // the path of a unix socket; empty: the host and the port
  std::string user;
  std::string password;  // empty: nobody logs in
  int database = 0;
  std::string prefix;  // of the keys
  std::string label;   // for messages: the URI without secrets, quoted
};

// Throws Error(InvalidArgument) for a URI that is malformed, and looks secrets up that are named.
RedisAddress redis_address(const std::string& uri, const RedisOptions& options);

}  // namespace tensorizer
