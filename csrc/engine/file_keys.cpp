#include "engine/file_keys.h"

#include "base/error.h"

namespace tensorizer {

namespace {

// A file has one salt, or one for each of several that were put together; many make us work only.
constexpr std::size_t kMostDerivations = 4;

}  // namespace

SharedSecret FileKeys::key_for(const std::optional<KeyDerivation>& derivation) {
  if (!source_.passphrase) return source_.secret;
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::Crypto, label_ + ": " + why);
  };
  if (!derivation) refuse("it was encrypted with a key, and not with a passphrase");
  const std::lock_guard lock(mutex_);
  for (const auto& [known, key] : derived_) {
    if (known == *derivation) return key;
  }
  if (derivation->cost.passes > most_.passes || derivation->cost.memory > most_.memory) {
    refuse("deriving its key takes " + std::to_string(derivation->cost.passes) + " passes over " +
           std::to_string(derivation->cost.memory) +
           " bytes of memory, and the option 'kdf_limit' allows " + std::to_string(most_.passes) +
           "," + std::to_string(most_.memory));
  }
  if (derived_.size() == kMostDerivations) {
    refuse("it derives more than 4 keys from one passphrase");
  }
  try {
    derived_.emplace_back(*derivation, derive_key(source_.secret->bytes(), *derivation));
  } catch (const Error& error) {
    refuse(std::string(error.message()));
  }
  return derived_.back().second;
}

}  // namespace tensorizer
