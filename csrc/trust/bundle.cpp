#include "trust/bundle.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/world.h"
#include "codec/hmac.h"
#include "trust/json.h"
#include "trust/statement.h"

namespace tensorizer {

namespace {

using Value = StrictJson::Value;
using Unknown = StrictJson::Unknown;

constexpr std::array<std::string_view, 4> kMediaTypes{
    "application/vnd.dev.sigstore.bundle.v0.3+json",
    "application/vnd.dev.sigstore.bundle+json;version=0.3",
    "application/vnd.dev.sigstore.bundle+json;version=0.2",
    "application/vnd.dev.sigstore.bundle+json;version=0.1",
};
constexpr std::size_t kMostCertificates = 16;
constexpr std::size_t kMostListed = 8;  // in a message

std::vector<std::byte> padded(ConstBytes bytes) {
  std::vector<std::byte> copy;
  copy.reserve(bytes.size() + StrictJson::kPadding);
  copy.assign(bytes.begin(), bytes.end());
  copy.resize(bytes.size() + StrictJson::kPadding);
  return copy;
}

// How a bundle says who signed.
struct Material {
  bool key = false;
  bool sigstore = false;
  std::string hint;  // of the key; empty if unknown
  std::vector<Certificate> chain;
  std::size_t log_entries = 0;
};

struct Envelope {
  Material material;
  std::vector<std::byte> message;  // what was signed, and padding
  std::size_t payload_begin = 0;   // in the message
  std::size_t message_size = 0;
  std::vector<std::byte> signature;

  ConstBytes signed_bytes() const { return ConstBytes(message).first(message_size); }
};

struct BundleReader {
  StrictJson& json;
  Envelope envelope{};
  bool has_media_type = false;
  bool has_material = false;
  bool has_envelope = false;
  bool has_payload = false;
  bool has_payload_type = false;
  bool has_signatures = false;

  Envelope read() {
    json.root(Unknown::Refused, [&](std::string_view key, Value& value) {
      if (key == "mediaType") {
        has_media_type = true;
        check_media_type(json.string(value, "'mediaType'"));
      } else if (key == "verificationMaterial") {
        has_material = true;
        read_material(value);
      } else if (key == "dsseEnvelope") {
        has_envelope = true;
        read_envelope(value);
      } else {
        return false;
      }
      return true;
    });
    if (!has_media_type) json.fail("it has no 'mediaType'");
    if (!has_material) json.fail("it has no 'verificationMaterial'");
    if (!has_envelope) json.fail("it has no 'dsseEnvelope'");
    return std::move(envelope);
  }

  void check_media_type(std::string_view type) const {
    if (std::ranges::find(kMediaTypes, type) == kMediaTypes.end()) {
      json.fail("its media type is " + quote(type) + ", expected is " + quote(kMediaTypes[0]));
    }
  }

  void read_material(Value& value) {
    Material& material = envelope.material;
    bool has_chain = false;
    json.object(value, "'verificationMaterial'", Unknown::Ignored,
                [&](std::string_view key, Value& member) {
                  if (key == "publicKey") {
                    material.key = true;
                    read_key(member);
                  } else if (key == "x509CertificateChain") {
                    has_chain = true;
                    read_chain(member);
                  } else if (key == "certificate") {
                    material.sigstore = true;
                    read_certificate(member);
                    material.chain.clear();
                  } else if (key == "tlogEntries") {
                    json.array(member, "'tlogEntries'", [&](Value& entry) {
                      ++material.log_entries;
                      json.object(entry, "an entry of 'tlogEntries'", Unknown::Ignored,
                                  [](std::string_view, Value&) { return false; });
                    });
                  } else {
                    return false;
                  }
                  return true;
                });
    const int ways = int{material.key} + int{has_chain} + int{material.sigstore};
    if (ways != 1) {
      json.fail(
          "'verificationMaterial' must have one of 'publicKey', 'x509CertificateChain' and "
          "'certificate', and has " +
          std::to_string(ways));
    }
    if (material.sigstore && material.log_entries == 0) {
      json.fail("it has a 'certificate' of Sigstore without 'tlogEntries'");
    }
  }

  void read_key(Value& value) {
    bool has_name = false;
    std::string& hint = envelope.material.hint;
    json.object(value, "'publicKey'", Unknown::Ignored, [&](std::string_view key, Value& member) {
      if (key == "hint") {
        has_name = true;
        hint = json.string(member, "'hint'");
      } else if (key == "rawBytes") {
        // Old bundles have the key itself, as PEM. It tells who claims to have signed.
        has_name = true;
        const auto bytes = decode(json.string(member, "'rawBytes'"), "the 'rawBytes' of the key");
        if (hint.empty()) hint = to_hex(sha256(bytes));
      } else {
        return false;
      }
      return true;
    });
    if (!has_name) json.fail("'publicKey' has neither 'hint' nor 'rawBytes'");
  }

  void read_chain(Value& value) {
    bool has_certificates = false;
    json.object(value, "'x509CertificateChain'", Unknown::Ignored,
                [&](std::string_view key, Value& member) {
                  if (key != "certificates") return false;
                  has_certificates = true;
                  json.array(member, "'certificates'", [&](Value& one) { read_certificate(one); });
                  return true;
                });
    if (!has_certificates || envelope.material.chain.empty()) {
      json.fail("'x509CertificateChain' has no certificates");
    }
  }

  void read_certificate(Value& value) {
    std::vector<Certificate>& chain = envelope.material.chain;
    bool has_bytes = false;
    json.object(value, "a certificate", Unknown::Ignored, [&](std::string_view key, Value& member) {
      if (key != "rawBytes") return false;
      has_bytes = true;
      const auto der = decode(json.string(member, "'rawBytes'"), "a certificate");
      std::optional<Certificate> one = Certificate::from_der(der);
      if (!one) json.fail("a certificate is not X.509 in DER");
      chain.push_back(std::move(*one));
      return true;
    });
    if (!has_bytes) json.fail("a certificate has no 'rawBytes'");
    if (chain.size() > kMostCertificates) {
      json.fail("it has more than " + std::to_string(kMostCertificates) + " certificates");
    }
  }

  void read_envelope(Value& value) {
    json.object(value, "'dsseEnvelope'", Unknown::Refused,
                [&](std::string_view key, Value& member) {
                  if (key == "payload") {
                    has_payload = true;
                    read_payload(json.string(member, "'payload'"));
                  } else if (key == "payloadType") {
                    has_payload_type = true;
                    check_payload_type(json.string(member, "'payloadType'"));
                  } else if (key == "signatures") {
                    has_signatures = true;
                    read_signatures(member);
                  } else {
                    return false;
                  }
                  return true;
                });
    if (!has_payload) json.fail("'dsseEnvelope' has no 'payload'");
    if (!has_payload_type) json.fail("'dsseEnvelope' has no 'payloadType'");
    if (!has_signatures) json.fail("'dsseEnvelope' has no 'signatures'");
  }

  void read_payload(std::string_view text) {
    const std::vector<std::byte> payload = decode(text, "'payload'");
    const std::string prefix = signed_prefix(payload.size());
    std::vector<std::byte>& message = envelope.message;
    envelope.payload_begin = prefix.size();
    envelope.message_size = prefix.size() + payload.size();
    message.reserve(envelope.message_size + StrictJson::kPadding);
    const ConstBytes begin = as_bytes(prefix);
    message.assign(begin.begin(), begin.end());
    message.insert(message.end(), payload.begin(), payload.end());
    message.resize(envelope.message_size + StrictJson::kPadding);
  }

  void check_payload_type(std::string_view type) const {
    if (type != kPayloadType) {
      json.fail("its payload is " + quote(type) + ", expected is " + quote(kPayloadType));
    }
  }

  void read_signatures(Value& value) {
    std::size_t count = 0;
    json.array(value, "'signatures'", [&](Value& one) {
      ++count;
      bool has_signature = false;
      json.object(one, "a signature", Unknown::Refused, [&](std::string_view key, Value& member) {
        if (key == "sig") {
          has_signature = true;
          envelope.signature = decode(json.string(member, "'sig'"), "a signature");
        } else if (key == "keyid") {
          if (!json.is_null(member)) json.string(member, "'keyid'");
        } else {
          return false;
        }
        return true;
      });
      if (!has_signature) json.fail("a signature has no 'sig'");
    });
    if (count != 1) {
      json.fail("it has " + std::to_string(count) + " signatures, expected is one");
    }
  }

  std::vector<std::byte> decode(std::string_view base64, const std::string& what) const {
    auto bytes = from_base64(base64);
    if (!bytes || bytes->empty()) json.fail(what + " is not base64, or is empty");
    return std::move(*bytes);
  }
};

Envelope read_envelope(ConstBytes bytes, const std::string& label) {
  const std::vector<std::byte> copy = padded(bytes);
  StrictJson json(copy, bytes.size(), label + ": this is not the bundle of a signed model");
  return BundleReader{json}.read();
}

struct Judge {
  const Envelope& envelope;
  const Policy& policy;
  const std::string& label;

  // Returns the name of the signer.
  std::string signer() const {
    if (envelope.material.sigstore) return checked_signer();
    return envelope.material.key ? signing_key() : signing_certificate();
  }

  std::string checked_signer() const {
    if (!policy.checked) refuse("it is signed with Sigstore, which only Python can check");
    const ConstBytes payload = envelope.signed_bytes().subspan(envelope.payload_begin);
    if (sha256(payload) != policy.checked->payload) {
      refuse("it is another one than the bundle of " + policy.checked->signer +
             " that was checked");
    }
    return policy.checked->signer;
  }

  std::string signing_key() const {
    const std::string& hint = envelope.material.hint;
    // Nearly always, the first one that is tried is the right one.
    std::vector<const PublicKey*> keys;
    for (const PublicKey& key : policy.keys) keys.push_back(&key);
    std::stable_partition(keys.begin(), keys.end(),
                          [&](const PublicKey* key) { return key->hint() == hint; });
    const auto signing = std::ranges::find_if(keys, [&](const PublicKey* key) {
      return key->verifies(envelope.signed_bytes(), envelope.signature);
    });
    if (signing != keys.end()) return "the key " + (*signing)->hint();
    if (!keys.empty() && keys.front()->hint() == hint) {
      refuse("its signature by the trusted key " + hint + " is wrong: it was modified");
    }
    refuse("it says that it is signed by " +
           (hint.empty() ? "a key without a name" : "the key " + quote(hint)) + ", " + expected());
  }

  std::string signing_certificate() const {
    const std::vector<Certificate>& chain = envelope.material.chain;
    const Certificate& leaf = chain.front();
    const std::string name = leaf.describe();
    if (policy.roots.empty())
      refuse("it is signed by the certificate of " + name + ", " + expected());
    if (const auto fault =
            chain_fault(chain, policy.roots, policy.at.value_or(WallClock::seconds()))) {
      refuse("the certificate of " + name + " is not trusted: " + *fault + "; " + expected());
    }
    if (const char* const fault = leaf.unusable()) {
      refuse("the certificate of " + name + " must not sign models: " + fault);
    }
    if (std::ranges::none_of(policy.identities, [&](const Identity& identity) {
          return leaf.has_identity(identity);
        })) {
      refuse("it is signed by the certificate of " + name + ", whose identities are " +
             list_of(leaf.identities()) + "; " + expected());
    }
    if (!key_of(leaf).verifies(envelope.signed_bytes(), envelope.signature)) {
      refuse("its signature by the certificate of " + name + " is wrong: it was modified");
    }
    return name;
  }

  static std::string list_of(const std::vector<std::string>& identities) {
    std::string list;
    for (std::size_t i = 0; i < std::min(identities.size(), kMostListed); ++i) {
      list += (i == 0 ? "" : ", ") + quote(identities[i]);
    }
    if (identities.empty()) return "none";
    return identities.size() > kMostListed ? list + " and more" : list;
  }

  PublicKey key_of(const Certificate& leaf) const {
    try {
      return leaf.key(label);
    } catch (const Error& error) {
      throw Error(ErrorKind::Crypto, std::string(error.message()));
    }
  }

  std::string expected() const {
    std::string who;
    const auto add = [&](const std::string& one) { who += (who.empty() ? "" : ", or ") + one; };
    if (policy.checked) add("the bundle of Sigstore by " + policy.checked->signer);
    for (const PublicKey& key : policy.keys) add("the key " + key.hint());
    for (const Identity& identity : policy.identities) {
      std::string roots;
      for (const Certificate& root : policy.roots) {
        roots += (roots.empty() ? "" : ", ") + quote(root.subject());
      }
      add(quote(identity.text()) + " with a certificate of " + roots);
    }
    return "expected is " + who;
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ErrorKind::Crypto, label + ": " + why);
  }
};

Manifest manifest_of(ConstBytes padded_payload, std::size_t size, std::string signer,
                     const std::optional<Sha256Digest>& subject, const std::string& label) {
  Manifest manifest = read_statement(padded_payload, size, label);
  manifest.signer = std::move(signer);
  if (subject && manifest.root != *subject) {
    throw Error(ErrorKind::HashMismatch, label + ": it is about the model " +
                                             quote(manifest.model) + " with the root digest " +
                                             to_hex(manifest.root) + ", expected is " +
                                             to_hex(*subject));
  }
  return manifest;
}

}  // namespace

std::string signed_prefix(std::size_t payload_size) {
  return "DSSEv1 " + std::to_string(kPayloadType.size()) + " " + std::string(kPayloadType) + " " +
         std::to_string(payload_size) + " ";
}

void check_bundle_size(std::size_t size, const std::string& label) {
  if (size > kMostBundleBytes) {
    throw Error(ErrorKind::InvalidFormat, label + ": a bundle has at most 256 MiB, and this has " +
                                              std::to_string(size) + " bytes");
  }
}

Manifest open_bundle(ConstBytes json, const Policy& policy, const std::string& label) {
  check_bundle_size(json.size(), label);
  const Envelope envelope = read_envelope(json, label);
  std::string signer = Judge{envelope, policy, label}.signer();
  return manifest_of(ConstBytes(envelope.message).subspan(envelope.payload_begin),
                     envelope.message_size - envelope.payload_begin, std::move(signer),
                     policy.subject, label);
}

Manifest open_payload(ConstBytes payload, const std::string& signer,
                      const std::optional<Sha256Digest>& subject, const std::string& label) {
  check_bundle_size(payload.size(), label);
  return manifest_of(padded(payload), payload.size(), signer, subject, label);
}

}  // namespace tensorizer
