// The parsed URI of a file in Redis, combined with its options.
#pragma once

#include <string>
#include <string_view>

#include "base/redaction.h"
#include "io/redis/options.h"
#include "io/secret.h"

namespace tensorizer {

struct RedisAddress final : Redactor {
  // Redacts the user and the password.
  void redact(Redaction& text) const override { tensorizer::redact(text, Secrets{user, password}); }

  std::string url = "http://localhost";  // of the server, for libcurl; "https" means TLS
  bool tls = false;
  std::string socket;  // the path of a Unix domain socket; empty: connect to the URL
  std::string user;
  std::string password;  // empty: no login
  int database = 0;
  std::string prefix;  // of the keys
  std::string label;   // for messages: the URI without secrets, quoted
};

// Parses a URI, and resolves references to secrets in the options. Throws Error(InvalidArgument)
// for a malformed URI, and for a user without a password.
RedisAddress redis_address(const std::string& uri, const RedisOptions& options);

// Returns a URI with the server that is connected to and the prefix, if that is given, without
// login and parameters (signed_path() in io/places/open.h). Throws Error(InvalidArgument) for a
// malformed URI.
std::string redis_path(const std::string& uri);

// Returns the same with the number of the database (io/place_kind.h).
std::string redis_identity(const std::string& uri);

}  // namespace tensorizer
