// Secrets other than keys: passwords, tokens, headers.
//
// An option that takes a secret takes its name as well: env:NAME for a variable of the environment,
// file:PATH for the first line of a file, named:NAME for what this process keeps under a name.
#pragma once

#include <string>

namespace tensorizer {

// Keeps a secret under a name until the process ends, and replaces the one that was there; an empty
// secret removes the name. Thread-safe.
void set_secret(const std::string& name, std::string secret);

}  // namespace tensorizer
