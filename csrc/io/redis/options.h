// The options for Redis servers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/option.h"
#include "io/tls_options.h"

namespace tensorizer {

// How to speak with Redis servers. The user and the password are secrets, and come before those of
// the URI.
struct RedisOptions {
  std::string user;
  std::string password;
  int database = -1;  // below 0: the one of the URI, or 0
  TlsOptions tls;     // of rediss://
  // In seconds.
  double connect_timeout = 10;
  double stall_timeout = 30;
  int connections = 4;
  int retries = 5;  // of a load
  // Of a save.
  std::uint64_t ttl = 0;  // after so many seconds the keys are gone; 0 is never
  bool overwrite = true;
};

// Keeps a reference.
std::vector<Option> redis_options(RedisOptions& redis);

}  // namespace tensorizer
