#include "trust/policy.h"

#include <string>
#include <string_view>

#include "base/error.h"

namespace tensorizer {

Policy make_policy(const std::string& label, std::span<const Pem> keys, std::span<const Pem> roots,
                   std::span<const std::string> identities, std::optional<std::time_t> at,
                   std::optional<Sha256Digest> subject) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::InvalidArgument, label + ": " + what);
  };
  if (keys.empty() && roots.empty()) {
    refuse("nobody is trusted to sign: give a public key, or a root certificate and an identity");
  }
  if (!roots.empty() && identities.empty()) {
    refuse(
        "a root certificate needs an identity: anybody to whom this root gave a certificate could "
        "sign");
  }
  if (roots.empty() && !identities.empty()) {
    refuse("an identity needs a root certificate, which says to whom it belongs");
  }
  Policy policy;
  for (const Pem& key : keys) policy.keys.push_back(PublicKey::from_pem(key.text, key.label));
  for (const Pem& root : roots) {
    for (Certificate& one : Certificate::from_pem(root.text, root.label)) {
      policy.roots.push_back(std::move(one));
    }
  }
  for (const std::string& identity : identities) policy.identities.emplace_back(identity, label);
  policy.at = at;
  policy.subject = subject;
  return policy;
}

Sha256Digest policy_digest(const Policy& policy) {
  Sha256 digest;
  const auto add = [&](ConstBytes bytes) {
    digest.update(as_bytes(std::to_string(bytes.size()) + ":"));
    digest.update(bytes);
  };
  const auto begin = [&](std::string_view what, std::size_t count) {
    add(as_bytes(what));
    add(as_bytes(std::to_string(count)));
  };
  begin("keys", policy.keys.size());
  for (const PublicKey& key : policy.keys) add(as_bytes(key.pem()));
  begin("roots", policy.roots.size());
  for (const Certificate& root : policy.roots) add(root.der());
  begin("identities", policy.identities.size());
  for (const Identity& identity : policy.identities) add(as_bytes(identity.text()));
  begin("at", policy.at ? 1 : 0);
  if (policy.at) add(as_bytes(std::to_string(*policy.at)));
  begin("checked", policy.checked ? 1 : 0);
  if (policy.checked) add(policy.checked->payload);
  begin("subject", policy.subject ? 1 : 0);
  if (policy.subject) add(*policy.subject);
  return digest.finish();
}

}  // namespace tensorizer
