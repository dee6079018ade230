#include "io/signed/policy_name.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/timestamp.h"
#include "codec/hmac.h"
#include "io/named_secret.h"
#include "io/secret.h"
#include "io/uri.h"
#include "trust/json.h"

namespace tensorizer {

namespace {

constexpr std::size_t kMostPolicyBytes = 1 << 20;
constexpr std::size_t kMostKeyBytes = 64 << 10;
constexpr std::string_view kPem = "-----BEGIN ";

NameTable<std::shared_ptr<const Policy>>& named_policies() {
  static auto* const named = new NameTable<std::shared_ptr<const Policy>>;
  return *named;
}

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::InvalidArgument, what); }

Sha256Digest parse_subject(const std::string& text, const std::string& label) {
  Sha256Digest subject;
  if (from_hex(text, subject)) return subject;
  refuse(label + ": the subject must be 64 hexadecimal digits, and is " + quote(text));
}

std::string text_of_file(const std::string& path) {
  const SecretBytes content = read_secret_file(path, kMostPolicyBytes, "whom to trust");
  if (content.bytes().size() > kMostPolicyBytes) {
    refuse(quote(path) + " has more than " + std::to_string(kMostPolicyBytes) + " bytes");
  }
  return std::string(as_text(content.bytes()));
}

// Reads {"keys": [...], "roots": [...], "identities": [...], "at": ..., "subject": ...}. Keys and
// roots are PEM, or names of files beside this one.
Policy parse_policy(const std::string& path, const std::string& text) {
  const std::string label = quote(path, 4096);
  std::vector<Pem> keys, roots;
  std::vector<std::string> identities;
  std::optional<std::time_t> at;
  std::optional<Sha256Digest> subject;
  const ConstBytes bytes = as_bytes(text);
  StrictJson json({bytes.begin(), bytes.end()}, label);
  const auto pem_of = [&](std::string_view given) -> Pem {
    if (given.find(kPem) != given.npos) return {label, std::string(given)};
    const std::string file = given.starts_with('/') || given.starts_with('~')
                                 ? std::string(given)
                                 : key_beside(path, std::string(given));
    return {quote(file, 4096), text_of_file(file)};
  };
  using Value = StrictJson::Value;
  const auto read_list = [&](std::string_view name, const auto& add) {
    return StrictJson::Member{name,
                              [&json, name, add](Value& list) {
                                json.array(list, name,
                                           [&](Value each) { add(json.string(each, name)); });
                              },
                              StrictJson::kOptional};
  };
  const auto read_time = [&](Value& text) {
    const std::string time(json.string(text, "at"));
    const auto parsed = parse_timestamp(time);
    if (!parsed) {
      refuse(label + ": the time must be as 2026-01-31T12:00:00Z, and is " + quote(time));
    }
    at = std::chrono::system_clock::to_time_t(*parsed);
  };
  const auto read_subject = [&](Value& text) {
    subject = parse_subject(std::string(json.string(text, "subject")), label);
  };
  json.root(
      StrictJson::Unknown::Refused,
      {read_list("keys", [&](std::string_view given) { keys.push_back(pem_of(given)); }),
       read_list("roots", [&](std::string_view given) { roots.push_back(pem_of(given)); }),
       read_list("identities", [&](std::string_view given) { identities.emplace_back(given); }),
       {"at", read_time, StrictJson::kOptional},
       {"subject", read_subject, StrictJson::kOptional}});
  return make_policy(label, keys, roots, identities, at, subject);
}

// Returns what a reference to a secret of several lines names.
SecretBytes read_secret(const std::string& value, const std::string& what) {
  const auto reference = parse_secret_reference(value);
  if (!reference || reference->name.empty()) {
    refuse(what +
           " is given by its name, not by its value: it must be file:PATH, env:NAME or "
           "named:NAME");
  }
  const std::string name(reference->name);
  switch (reference->place) {
    case SecretPlace::File:
      return read_secret_file(name, kMostKeyBytes, what);
    case SecretPlace::Variable:
      return SecretBytes(as_bytes(read_secret_variable(name, what)));
    case SecretPlace::Named:
      break;
  }
  return SecretBytes(as_bytes(resolve_secret(value)));
}

Policy policy_of_file(const std::string& path) {
  std::string text = text_of_file(path);
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);  // a byte order mark
  // Text may be in front of PEM, and PEM in JSON.
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (text.find(kPem) == text.npos || text.substr(begin, 1) == "{") return parse_policy(path, text);
  const Pem key{quote(path, 4096), text};
  return make_policy(key.label, {&key, 1}, {}, {});
}

}  // namespace

bool names_policy(std::string_view value) noexcept {
  const auto reference = parse_secret_reference(value);
  return reference && reference->place != SecretPlace::Variable && !reference->name.empty();
}

std::shared_ptr<const Policy> resolve_policy(const std::string& value) {
  const auto reference = parse_secret_reference(value);
  if (!reference) refuse("option 'trust' must be " + std::string(kPolicyNames));
  const std::string name(reference->name);
  if (reference->place == SecretPlace::File) {
    return std::make_shared<const Policy>(policy_of_file(name));
  }
  const auto policy = named_policies().find(name);
  if (!policy) refuse("there is no policy named " + quote(name) + ": add it with trust.add()");
  return *policy;
}

SigningKey resolve_signing_key(const std::string& value, const std::string& passphrase) {
  const SecretBytes pem = read_secret(value, "a signing key");
  const SecretBytes opened_by(passphrase.empty() ? ConstBytes()
                                                 : as_bytes(resolve_secret(passphrase)));
  const std::string label = "the signing key " + quote(value, 4096);
  SigningKey found{PrivateKey::from_pem(pem, opened_by.bytes(), label), {}};
  const std::string_view text = as_text(pem.bytes());
  if (text.find("-----BEGIN CERTIFICATE-----") != text.npos) {
    found.chain = Certificate::from_pem(text, label);
  }
  return found;
}

void set_trust(const std::string& name, const TrustedSigners& signers) {
  const std::string label = "the policy " + quote(name);
  const auto pems_of = [&](const std::vector<std::string>& texts) {
    std::vector<Pem> pems;
    for (const std::string& text : texts) pems.push_back({label, text});
    return pems;
  };
  std::optional<Sha256Digest> subject;
  if (signers.subject) subject = parse_subject(*signers.subject, label);
  named_policies().set(name, std::make_shared<const Policy>(
                                 make_policy(label, pems_of(signers.keys), pems_of(signers.roots),
                                             signers.identities, signers.at, subject)));
}

void trust_checked(const std::string& name, const std::string& signer, ConstBytes payload) {
  Policy policy;
  policy.checked = CheckedBundle{signer, sha256(payload)};
  named_policies().set(name, std::make_shared<const Policy>(std::move(policy)));
}

void forget_trust(const std::string& name) { named_policies().forget(name); }

}  // namespace tensorizer
