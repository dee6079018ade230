// Opens bundles of OpenSSF Model Signing v1.0: checks who signed, and reads what.
//
// A bundle is JSON of Sigstore's form: a DSSE envelope with an in-toto statement. It is signed by a
// key or by a certificate; signatures of Sigstore itself need its transparency log, and are
// refused unless the host has checked them. Nothing here does I/O or knows secrets.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "codec/sha256.h"
#include "trust/manifest.h"
#include "trust/policy.h"

namespace tensorizer {

// Throws Error(InvalidFormat) for more bytes than a bundle may have.
void check_bundle_size(std::size_t size, const std::string& label);

// Throws Error(InvalidFormat) if this is no such bundle, Error(Crypto) if it is not signed by
// somebody whom the policy trusts, or is Sigstore's, and Error(HashMismatch) if it is about another
// model than the `subject` of the policy. Messages begin with `label`.
Manifest open_bundle(std::vector<std::byte> json, const Policy& policy, const std::string& label);

// Checks the form of a bundle for a verifier of Sigstore, which must not need much more memory than
// its payload has. Throws Error(InvalidFormat) if this is no such bundle, or has too much beside
// the payload, and Error(Crypto) if it is not signed with Sigstore.
void check_sigstore_bundle(std::vector<std::byte> json, const std::string& label);

// Reads the payload of a bundle whose signature the caller has verified. `signer` is its name for
// messages. Throws as open_bundle().
Manifest open_payload(std::vector<std::byte> payload, const std::string& signer,
                      const std::optional<Sha256Digest>& subject, const std::string& label);

// Returns what DSSE signs for a payload of this size, without the payload that follows.
std::string signed_prefix(std::size_t payload_size);

}  // namespace tensorizer
