// Derives and keeps the keys of one encrypted file.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "codec/argon2.h"
#include "format/catalogue.h"
#include "io/key.h"
#include "io/source.h"

namespace tensorizer {

inline constexpr std::string_view kNoKey =
    "the file is encrypted, and no key was given: name one with the option 'key'";

// Thread-safe.
class FileKeys {
 public:
  // `most` is the most expensive derivation that a file may ask for. `label` names the file in
  // messages.
  FileKeys(KeySource source, Argon2Cost most, std::string label)
      : source_(std::move(source)), most_(most), label_(std::move(label)) {}

  // Returns the key of data that was encrypted with a key from this derivation, or, if that is
  // null, with a key that was not derived. Runs each derivation once, and blocks until it is done.
  // Throws Error(Crypto) for a derivation that is too expensive, for too many different
  // derivations, and if a passphrase was given and the data was not encrypted with one.
  SharedSecret key_for(const std::optional<KeyDerivation>& derivation, Cancel& cancel);

 private:
  struct Derived {
    KeyDerivation derivation;
    std::shared_ptr<Derivation> making;
    SharedSecret key;  // null until it is derived; guarded by the mutex
  };

  std::shared_ptr<Derived> find(const KeyDerivation& derivation);
  [[noreturn]] void refuse(const std::string& why) const;

  const KeySource source_;
  const Argon2Cost most_;
  const std::string label_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Derived>> derived_;
};

// Throws Error(Crypto) if the file is encrypted, and `keys` is null.
void check_key(const Source& source, const Catalogue& catalogue, const FileKeys* keys);

}  // namespace tensorizer
