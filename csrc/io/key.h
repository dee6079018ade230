// Resolves the name of an encryption key in an option; tensorizer_ops/keys.h describes the names.
#pragma once

#include <string>
#include <string_view>

#include "codec/argon2.h"
#include "codec/secret_bytes.h"
#include "tensorizer_ops/keys.h"

namespace tensorizer {

// Describes valid names, for messages.
inline constexpr const char* kKeyNames =
    "the name of a key: env:NAME, file:PATH, passphrase-env:NAME, passphrase-file:PATH or "
    "named:NAME";

bool names_key(std::string_view value) noexcept;

// Returns the key that `value` names. Throws Error(InvalidArgument) if there is no such variable or
// name, or if it holds no key, and NotFound and the other errors of files; the messages show no
// secret.
KeySource resolve_key(const std::string& value);

}  // namespace tensorizer
