// Whose signatures loads trust.
//
// The option `trust` of a load is the name of a policy:
//   file:PATH    a file with a public key (PEM), or with a policy (JSON)
//   named:NAME   a policy that this process keeps under a name, by set_trust()
// Such a load gives only bytes that are listed in a bundle of OpenSSF Model Signing, beside the
// file or in the option `signature`, which somebody whom the policy trusts has signed.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <vector>

namespace tensorizer {

struct TrustedSigners {
  // Public keys in PEM, on the curves P-256, P-384 and P-521.
  std::vector<std::string> keys;
  // Certificates in PEM, which issue others, and to whom: subject alternative names, or whole
  // subjects as "CN=signer,O=Example".
  std::vector<std::string> roots;
  std::vector<std::string> identities;
  // When certificates must be valid; null for now.
  std::optional<std::time_t> at;
  // The root digest of the only model that is wanted, in hexadecimal digits; null for any that they
  // have signed: an older one, or another one, passes as well.
  std::optional<std::string> subject;
};

// Keeps a policy under a name until the process ends, and replaces the one that was there. Throws
// Error(InvalidArgument) for keys and certificates that cannot be used, and for roots without
// identities. Thread-safe.
void set_trust(const std::string& name, const TrustedSigners& signers);

// Removes a name. Thread-safe.
void forget_trust(const std::string& name);

}  // namespace tensorizer
