#include "codec/argon2.h"

#include <sodium.h>

#include <string>

#include "base/error.h"
#include "codec/secretbox.h"

namespace tensorizer {

static_assert(kSaltSize == crypto_pwhash_argon2id_SALTBYTES);

std::optional<Argon2Cost> named_cost(std::string_view name) noexcept {
  if (name == "min") {
    return Argon2Cost{crypto_pwhash_argon2id_OPSLIMIT_MIN, crypto_pwhash_argon2id_MEMLIMIT_MIN};
  }
  if (name == "interactive") {
    return Argon2Cost{crypto_pwhash_argon2id_OPSLIMIT_INTERACTIVE,
                      crypto_pwhash_argon2id_MEMLIMIT_INTERACTIVE};
  }
  if (name == "moderate") {
    return Argon2Cost{crypto_pwhash_argon2id_OPSLIMIT_MODERATE,
                      crypto_pwhash_argon2id_MEMLIMIT_MODERATE};
  }
  if (name == "sensitive") {
    return Argon2Cost{crypto_pwhash_argon2id_OPSLIMIT_SENSITIVE,
                      crypto_pwhash_argon2id_MEMLIMIT_SENSITIVE};
  }
  return std::nullopt;
}

bool is_possible(const Argon2Cost& cost) noexcept {
  return cost.passes >= crypto_pwhash_argon2id_OPSLIMIT_MIN &&
         cost.passes <= crypto_pwhash_argon2id_OPSLIMIT_MAX &&
         cost.memory >= crypto_pwhash_argon2id_MEMLIMIT_MIN &&
         cost.memory <= crypto_pwhash_argon2id_MEMLIMIT_MAX;
}

SharedSecret derive_key(ConstBytes passphrase, const KeyDerivation& derivation) {
  const Argon2Cost& cost = derivation.cost;
  const std::string how = std::to_string(cost.passes) + " passes over " +
                          std::to_string(cost.memory) + " bytes of memory";
  if (!is_possible(cost)) {
    throw Error(ErrorKind::Crypto, "no key can be derived by " + how);
  }
  auto key = std::make_shared<SecretBytes>(kKeySize);
  if (crypto_pwhash_argon2id(reinterpret_cast<unsigned char*>(key->bytes().data()), kKeySize,
                             reinterpret_cast<const char*>(passphrase.data()), passphrase.size(),
                             reinterpret_cast<const unsigned char*>(derivation.salt.data()),
                             cost.passes, cost.memory,
                             crypto_pwhash_argon2id_ALG_ARGON2ID13) != 0) {
    throw Error(ErrorKind::Crypto, "the memory for deriving a key by " + how + " is not to be had");
  }
  return key;
}

}  // namespace tensorizer
