// Secrets, and how to name one instead of writing it down.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensorizer_ops/secrets.h"

namespace tensorizer {

// Whether a value names a secret: "env:NAME" for a variable of the environment, "file:PATH" for the
// first line of a file, "named:NAME" for what this process keeps under a name. Any other value is
// the secret itself.
bool names_secret(std::string_view value);

// The secret that `value` names or is. Throws Error(InvalidArgument) where there is no such
// variable or name, and NotFound and the like for the file; the messages hold no secret.
std::string resolve_secret(const std::string& value);

// Whether a URI holds a user, a password, or parameters, which may be a signature.
bool holds_secret(std::string_view uri);

// A URI for messages: without any of these.
std::string without_secrets(std::string_view uri);

// What a server was shown and must not be quoted with.
using Secrets = std::vector<std::string>;

// Adds the value of a header, and each part of it that may be a secret of its own, as the token of
// "Authorization: Bearer TOKEN". `line`: "name: value".
void add_header_secrets(Secrets& secrets, std::string_view line);

// Adds the user, the password and the parameters of a URL, as they stand there and as they are
// meant, and what they become in a header.
void add_url_secrets(Secrets& secrets, std::string_view url);

// `text` with "..." in the place of every secret, in whatever case; a secret of fewer than four
// characters is found only where it stands as a word of its own.
std::string redacted(std::string_view text, std::span<const std::string> secrets);

}  // namespace tensorizer
