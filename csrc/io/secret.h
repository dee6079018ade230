// Secrets: resolving references to them, and keeping them out of messages.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/redaction.h"
#include "tensorizer_ops/secrets.h"

namespace tensorizer {

// Returns true if a value is a reference to a secret: "env:NAME" for an environment variable,
// "file:PATH" for the first line of a file, "named:NAME" for a secret set by set_secret(). Any
// other value is the secret itself.
bool names_secret(std::string_view value);

// Returns the secret that `value` names or is. Throws Error(InvalidArgument) if there is no such
// variable or name, and NotFound and the other errors of files; the messages show no secret.
std::string resolve_secret(const std::string& value);

// Returns true if a URI holds a user, a password, or parameters, which may be a signature. The "?"
// in the key of an object begins parameters only if one behind it has a name as those of secrets.
bool holds_secret(std::string_view uri);

// Returns a URI for messages only: without user, password and parameters. If it cannot be told what
// these are, it hides more, so that URIs of different servers may give the same text.
std::string without_secrets(std::string_view uri);

// Returns the key of an object for messages only, in the same way.
std::string key_without_secrets(std::string_view key);

// The secrets that a request sends to a server, which messages must not quote from its response.
using Secrets = std::vector<std::string>;

// Adds the value of a header, and each part of it that may itself be a secret, such as the token in
// "Authorization: Bearer TOKEN", or the user and the password in "Authorization: Basic ...".
// `line`: "name: value".
void add_header_secrets(Secrets& secrets, std::string_view line);

// Adds the user, the password and the parameters of a URL, escaped and decoded, and the base64 of
// user and password, which the Authorization header holds.
void add_url_secrets(Secrets& secrets, std::string_view url);

// Adds the users and the passwords of the proxies that the environment names.
void add_proxy_secrets(Secrets& secrets);

// Redacts secrets in all texts of this process, also escaped (base/redaction.h).
void redact_everywhere(std::span<const std::string> secrets, SecretKind kind);

// Adds secrets to what is redacted, also escaped.
void redact(Redaction& text, std::span<const std::string> secrets);

// Returns `text` with "..." in place of these secrets, and of those that are redacted everywhere.
std::string redacted(std::string_view text, std::span<const std::string> secrets);

}  // namespace tensorizer
