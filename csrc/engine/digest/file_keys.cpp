#include "engine/digest/file_keys.h"

#include <utility>

#include "base/error.h"

namespace tensorizer {

namespace {

// A file has one salt, or several if it was put together from several files. A file with many salts
// could only be meant to cost time, since each takes a derivation.
constexpr std::size_t kMostDerivations = 4;

}  // namespace

SharedSecret FileKeys::key_for(const std::optional<KeyDerivation>& derivation, Cancel& cancel) {
  if (!source_.passphrase) return source_.secret;
  if (!derivation) refuse("it was encrypted with a key, and not with a passphrase");
  try {
    const std::shared_ptr<Derived> derived = find(*derivation);
    {
      const std::lock_guard lock(mutex_);
      if (derived->key) return derived->key;
    }
    // No lock is held while waiting: a signal handler may ask for the same key.
    const SharedSecret key = derived->making->wait(cancel);
    const std::lock_guard lock(mutex_);
    derived->key = key;
    return key;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::OutOfMemory) throw;
    throw Error(error.kind(), label_ + ": " + std::string(error.message()));
  }
}

std::shared_ptr<FileKeys::Derived> FileKeys::find(const KeyDerivation& derivation) {
  const std::lock_guard lock(mutex_);
  std::erase_if(derived_, [](const std::shared_ptr<Derived>& known) {
    return !known->key && known->making->is_foreign();
  });
  for (const std::shared_ptr<Derived>& known : derived_) {
    if (known->derivation == derivation) return known;
  }
  const Argon2Cost& cost = derivation.cost;
  if (cost.passes > most_.passes || cost.memory > most_.memory) {
    refuse("deriving its key takes " + std::to_string(cost.passes) + " passes over " +
           std::to_string(cost.memory) + " bytes of memory, and the option 'kdf_limit' allows " +
           std::to_string(most_.passes) + "," + std::to_string(most_.memory));
  }
  if (derived_.size() == kMostDerivations) {
    refuse("it derives more than 4 keys from one passphrase");
  }
  if (!is_possible(cost)) refuse("libsodium cannot derive its key at such a cost");
  auto making = std::make_shared<Derivation>(source_.secret->bytes(), derivation);
  return derived_.emplace_back(
      std::make_shared<Derived>(Derived{derivation, std::move(making), nullptr}));
}

void FileKeys::refuse(const std::string& why) const {
  throw Error(ErrorKind::Crypto, label_ + ": " + why);
}

void check_key(const Source& source, const Catalogue& catalogue, const FileKeys* keys) {
  if (catalogue.encrypted() && keys == nullptr) {
    throw Error(ErrorKind::Crypto, source.label() + ": " + std::string(kNoKey));
  }
}

}  // namespace tensorizer
