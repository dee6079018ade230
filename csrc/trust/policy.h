// Whom to trust, and what.
#pragma once

#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codec/ecdsa.h"
#include "codec/sha256.h"
#include "trust/certificate.h"

namespace tensorizer {

// A bundle of Sigstore that the host has checked.
struct CheckedBundle {
  std::string signer;    // for messages
  Sha256Digest payload;  // its SHA-256
};

// A bundle is trusted if one of `keys` signed it, or a certificate that one of `roots` issued to
// one of `identities`, or if it is `checked`. Never a certificate of the system.
struct Policy {
  std::vector<PublicKey> keys;
  std::vector<Certificate> roots;
  std::vector<Identity> identities;
  // When certificates must be valid; null for now.
  std::optional<std::time_t> at;
  std::optional<CheckedBundle> checked{};
  // The root digest of the only model that is wanted; null for any that they signed.
  std::optional<Sha256Digest> subject;
};

// Text and the name of it for messages: "'signer.pub'".
struct Pem {
  std::string label;
  std::string text;
};

// Makes a policy of public keys, one a text, and of certificates, any number a text. Throws
// Error(InvalidArgument) for what they are not, if there are neither keys nor roots, and if there
// are roots without identities or the other way round. Messages begin with `label`, or with that of
// the text.
Policy make_policy(const std::string& label, std::span<const Pem> keys, std::span<const Pem> roots,
                   std::span<const std::string> identities,
                   std::optional<std::time_t> at = std::nullopt,
                   std::optional<Sha256Digest> subject = std::nullopt);

// Returns a digest that is equal for policies that trust the same signers, given in the same order,
// for the same models.
Sha256Digest policy_digest(const Policy& policy);

}  // namespace tensorizer
