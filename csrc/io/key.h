// Finds the key that an option names; tensorizer_ops/keys.h says what a name looks like.
#pragma once

#include <string>
#include <string_view>

#include "codec/argon2.h"
#include "codec/secret_bytes.h"
#include "tensorizer_ops/keys.h"

namespace tensorizer {

// What a name may look like, for messages.
inline constexpr const char* kKeyNames =
    "the name of a key: env:NAME, file:PATH, passphrase-env:NAME, passphrase-file:PATH or "
    "named:NAME";

bool names_key(std::string_view value) noexcept;

// The key that `value` names. Throws Error(InvalidArgument) where there is no such variable or
// name, or it holds no key, and NotFound and the like for a file; the messages hold no secret.
KeySource resolve_key(const std::string& value);

}  // namespace tensorizer
