// Secrets, and how to name one instead of writing it down.
#pragma once

#include <string>
#include <string_view>

namespace tensorizer {

// Whether a value names a secret: "env:NAME" for a variable of the environment, "file:PATH" for the
// first line of a file. Any other value is the secret itself.
bool names_secret(std::string_view value);

// The secret that `value` names or is. Throws Error(InvalidArgument) where there is no such
// variable, and NotFound and the like for the file; the messages hold no secret.
std::string resolve_secret(const std::string& value);

// Whether a URI holds a user, a password, or parameters, which may be a signature.
bool holds_secret(std::string_view uri);

// A URI for messages: without any of these.
std::string without_secrets(std::string_view uri);

}  // namespace tensorizer
