// Secrets, and how to name one instead of writing it down.
#pragma once

#include <string>
#include <string_view>

namespace tensorizer {

// Whether a value names a secret: "env:NAME" for a variable of the environment, "file:PATH" for the
// first line of a file, "named:NAME" for what this process keeps under a name. Any other value is
// the secret itself.
bool names_secret(std::string_view value);

// The secret that `value` names or is. Throws Error(InvalidArgument) where there is no such
// variable or name, and NotFound and the like for the file; the messages hold no secret.
std::string resolve_secret(const std::string& value);

// Keeps a secret under a name, in the place of one that was there; an empty one is forgotten.
void set_secret(const std::string& name, std::string secret);

// Whether a URI holds a user, a password, or parameters, which may be a signature.
bool holds_secret(std::string_view uri);

// A URI for messages: without any of these.
std::string without_secrets(std::string_view uri);

}  // namespace tensorizer
