// Resolves the names of policies, which tensorizer_ops/trust.h describes, and of signing keys.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "tensorizer_ops/trust.h"
#include "trust/policy.h"

namespace tensorizer {

// Describes valid names, for messages.
inline constexpr const char* kPolicyNames = "the name of a policy: file:PATH or named:NAME";

bool names_policy(std::string_view value) noexcept;

// Returns the policy that `value` names. Throws Error(InvalidArgument) if there is no such name, or
// if the file holds none, and NotFound and the other errors of files.
std::shared_ptr<const Policy> resolve_policy(const std::string& value);

// Stores a policy that trusts a bundle of Sigstore with this payload, which the caller has checked.
void trust_checked(const std::string& name, const std::string& signer, ConstBytes payload);

struct SigningKey {
  PrivateKey key;
  std::vector<Certificate> chain;  // leaf first; may be empty
};

// Returns the private key in the PEM that a reference to a secret names ("file:PATH", "env:NAME",
// "named:NAME"), and the certificates there. `passphrase`: another reference, or empty. Throws as
// resolve_policy(), and what the from_pem() of both throw; the messages show no secret.
SigningKey resolve_signing_key(const std::string& value, const std::string& passphrase);

}  // namespace tensorizer
