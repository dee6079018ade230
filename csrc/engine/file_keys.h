// The keys of one encrypted file that is read.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "codec/argon2.h"
#include "io/key.h"

namespace tensorizer {

class FileKeys {
 public:
  // `most`: the hardest derivation that a file may ask for. `label` is the file's, for messages.
  FileKeys(KeySource source, Argon2Cost most, std::string label)
      : source_(std::move(source)), most_(most), label_(std::move(label)) {}

  // The key for what was encrypted with a key that was derived so, or with a key as it is. Each
  // derivation happens once; from any thread. Throws Error(Crypto) for one that is too hard, for
  // one too many, and for a passphrase where there is none.
  SharedSecret key_for(const std::optional<KeyDerivation>& derivation, Cancel& cancel);

 private:
  struct Derived {
    KeyDerivation derivation;
    std::shared_ptr<Derivation> making;
    SharedSecret key;  // once it is there; guarded by the mutex
  };

  std::shared_ptr<Derived> find(const KeyDerivation& derivation);
  [[noreturn]] void refuse(const std::string& why) const;

  const KeySource source_;
  const Argon2Cost most_;
  const std::string label_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Derived>> derived_;
};

}  // namespace tensorizer
