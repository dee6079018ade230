// The options for Redis servers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/option.h"
#include "io/tls_options.h"

namespace tensorizer {

// The options of connections to Redis servers. The user and the password are secrets, and override
// those of the URI.
struct RedisOptions {
  std::string user;
  std::string password;
  int database = -1;  // below 0: the one of the URI, or 0
  TlsOptions tls;     // for rediss://
  // In seconds.
  double connect_timeout = 10;
  double stall_timeout = 30;
  int connections = 4;
  int retries = 5;  // for loads
  // For saves.
  std::uint64_t ttl = 0;  // seconds after which the keys expire; 0: never
  bool overwrite = true;
};

// Returns options that set the members of `redis`. They keep a reference to it.
std::vector<Option> redis_options(RedisOptions& redis);

}  // namespace tensorizer
