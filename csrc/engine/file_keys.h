// The keys of one encrypted file that is read.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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
  SharedSecret key_for(const std::optional<KeyDerivation>& derivation);

 private:
  const KeySource source_;
  const Argon2Cost most_;
  const std::string label_;
  std::mutex mutex_;
  std::vector<std::pair<KeyDerivation, SharedSecret>> derived_;
};

}  // namespace tensorizer
