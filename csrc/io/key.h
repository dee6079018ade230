// Keys for encrypted files, and how a program names one: options, graphs and scripts hold names
// only.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "codec/argon2.h"
#include "codec/secret_bytes.h"

namespace tensorizer {

// A key of 32 bytes, or a passphrase from which each file's key is derived.
struct KeySource {
  SharedSecret secret;
  bool passphrase = false;
  // How a key was made of a passphrase: a file that is written with it says so.
  std::optional<KeyDerivation> derivation = std::nullopt;
};

// Throw Error(InvalidArgument) for a key that has not 32 bytes, and an empty passphrase.
KeySource make_key(ConstBytes key);
KeySource make_passphrase(ConstBytes passphrase);

// What a name may look like, for messages.
inline constexpr const char* kKeyNames =
    "the name of a key: env:NAME, file:PATH, passphrase-env:NAME, passphrase-file:PATH or "
    "named:NAME";

bool names_key(std::string_view value) noexcept;

// The key that `value` names:
//   env:NAME              a variable of the environment: 64 hexadecimal digits, or base64
//   file:PATH             a file of exactly 32 bytes
//   passphrase-env:NAME   a variable, as it is
//   passphrase-file:PATH  a file, without the line breaks at its end
//   named:NAME            what this process keeps under a name
// Throws Error(InvalidArgument) where there is no such variable or name, or it holds no key, and
// NotFound and the like for a file; the messages hold no secret.
KeySource resolve_key(const std::string& value);

// Keeps under a name what `provide` returns whenever a file needs it, in the place of what was
// there; a null one is forgotten. It may be called from any thread.
void set_key(const std::string& name, std::function<KeySource()> provide);
void set_key(const std::string& name, KeySource key);

}  // namespace tensorizer
