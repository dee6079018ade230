// Keys for encrypted files.
//
// Options, graphs and scripts never hold a key, only the name of one, in the option `key`:
//   env:NAME              a variable of the environment: 64 hexadecimal digits, or base64
//   file:PATH             a file of exactly 32 bytes
//   passphrase-env:NAME   a variable whose text is a passphrase
//   passphrase-file:PATH  a file that holds a passphrase; line breaks at its end are ignored
//   named:NAME            a key that this process keeps under a name, by set_key()
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace tensorizer {

class SecretBytes;
struct KeyDerivation;

// A key of 32 bytes, or a passphrase from which the key of each file is derived. make_key() and
// make_passphrase() make one. Copies share the secret, which lies in memory that is locked where
// the system allows that, left out of core dumps, and wiped when the last copy is destroyed.
struct KeySource {
  std::shared_ptr<const SecretBytes> secret;
  bool passphrase = false;
  // How the key was derived from a passphrase, so that the passphrase opens the files too; or null.
  std::shared_ptr<const KeyDerivation> derivation = nullptr;
};

// Makes a key. Throws Error(InvalidArgument) unless it has 32 bytes.
KeySource make_key(std::span<const std::byte> key);

// Makes a passphrase. Throws Error(InvalidArgument) if it is empty.
KeySource make_passphrase(std::span<const std::byte> passphrase);

// Keeps a key under a name until the process ends, and replaces the one that was there. Files that
// are open keep the key that they have. Thread-safe.
void set_key(const std::string& name, KeySource key);

// Keeps a function that returns the key, which is called each time a file needs it, from any
// thread; what it throws ends that load or save. A null function removes the name. Thread-safe.
void set_key(const std::string& name, std::function<KeySource()> provide);

}  // namespace tensorizer
