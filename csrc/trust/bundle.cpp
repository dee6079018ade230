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
constexpr std::size_t kMostLogEntries = 16;
constexpr std::size_t kMostListed = 8;  // in a message
// Each byte outside of strings may be a value, which takes more memory than its text. Bundles of
// honest tools have less than 1 KiB of them, as all that was signed is in one string.
constexpr std::size_t kMostOutsideStrings = 1 << 20;

// Verifiers of Sigstore make objects of all that is beside the payload: a certificate, an entry of
// a log and timestamps, of less than 20 KiB.
constexpr std::size_t kMostBesidePayload = 64 << 10;

// Returns how many bytes of a text are not inside of strings, or more than kMostOutsideStrings. A
// quote behind a backslash is none, also outside of strings, as simdjson sees it.
std::size_t outside_strings(std::string_view json) {
  std::size_t outside = 0;
  std::size_t last = 0;
  bool inside = false;
  for (std::size_t quote = json.find('"'); quote != json.npos && outside <= kMostOutsideStrings;
       quote = json.find('"', quote + 1)) {
    const std::size_t escapes = quote - 1 - json.substr(0, quote).find_last_not_of('\\');
    if (escapes % 2 == 1) continue;
    if (!inside) outside += quote + 2 - last;
    inside = !inside;
    last = quote;
  }
  return inside ? outside : outside + json.size() - last;
}

// How a bundle says who signed.
struct Material {
  int ways = 0;
  bool key = false;
  bool sigstore = false;
  std::string hint;  // of the key; empty if unknown
  std::vector<Certificate> chain;
  std::size_t log_entries = 0;
};

struct Envelope {
  Material material;
  std::vector<std::byte> payload;
  std::size_t payload_text = 0;  // bytes of its JSON string
  std::vector<std::byte> signature;

  bool is_signed_by(const PublicKey& key) const {
    return key.verifies({as_bytes(signed_prefix(payload.size())), payload}, signature);
  }
};

struct BundleReader {
  static constexpr bool kOptional = StrictJson::kOptional;

  StrictJson& json;
  Envelope envelope{};

  Envelope read() {
    const auto read_type = [&](Value& text) { check_media_type(json.string(text, "'mediaType'")); };
    json.root(Unknown::Refused,
              {{"mediaType", read_type},
               {"verificationMaterial", [&](Value& value) { read_material(value); }},
               {"dsseEnvelope", [&](Value& value) { read_envelope(value); }}});
    return std::move(envelope);
  }

  void check_media_type(std::string_view type) const {
    if (std::ranges::find(kMediaTypes, type) == kMediaTypes.end()) {
      json.fail("its media type is " + quote(type) + ", expected is " + quote(kMediaTypes[0]));
    }
  }

  void read_material(Value& value) {
    Material& material = envelope.material;
    const auto read_certificate_of_sigstore = [&](Value& one) {
      ++material.ways;
      material.sigstore = true;
      read_certificate(one);
      material.chain.clear();
    };
    const auto read_entry = [&](Value& entry) {
      if (++material.log_entries > kMostLogEntries) {
        json.fail("it has more than " + std::to_string(kMostLogEntries) + " 'tlogEntries'");
      }
      json.object(entry, "an entry of 'tlogEntries'", Unknown::Ignored, {});
    };
    json.object(value, "'verificationMaterial'", Unknown::Ignored,
                {{"publicKey", [&](Value& key) { read_key(key); }, kOptional},
                 {"x509CertificateChain", [&](Value& chain) { read_chain(chain); }, kOptional},
                 {"certificate", read_certificate_of_sigstore, kOptional},
                 {"tlogEntries",
                  [&](Value& list) { json.array(list, "'tlogEntries'", read_entry); }, kOptional}});
    if (material.ways != 1) {
      json.fail(
          "'verificationMaterial' must have one of 'publicKey', 'x509CertificateChain' and "
          "'certificate', and has " +
          std::to_string(material.ways));
    }
    if (material.sigstore && material.log_entries == 0) {
      json.fail("it has a 'certificate' of Sigstore without 'tlogEntries'");
    }
  }

  void read_key(Value& value) {
    Material& material = envelope.material;
    ++material.ways;
    material.key = true;
    std::optional<std::string> hint;
    std::optional<std::string> hash;
    // Old bundles have the key itself, as PEM. It tells who claims to have signed.
    const auto read_bytes = [&](Value& text) {
      hash = to_hex(sha256(decode(json.string(text, "'rawBytes'"), "the 'rawBytes' of the key")));
    };
    json.object(value, "'publicKey'", Unknown::Ignored,
                {{"hint", [&](Value& text) { hint = json.string(text, "'hint'"); }, kOptional},
                 {"rawBytes", read_bytes, kOptional}});
    if (!hint && !hash) json.fail("'publicKey' has neither 'hint' nor 'rawBytes'");
    material.hint = hint && !(hint->empty() && hash) ? *hint : *hash;
  }

  void read_chain(Value& value) {
    ++envelope.material.ways;
    const auto read_list = [&](Value& list) {
      json.array(list, "'certificates'", [&](Value& one) { read_certificate(one); });
    };
    json.object(value, "'x509CertificateChain'", Unknown::Ignored, {{"certificates", read_list}});
    if (envelope.material.chain.empty()) {
      json.fail("'x509CertificateChain' has no certificates");
    }
  }

  void read_certificate(Value& value) {
    std::vector<Certificate>& chain = envelope.material.chain;
    const auto read_bytes = [&](Value& text) {
      const auto der = decode(json.string(text, "'rawBytes'"), "a certificate");
      std::optional<Certificate> one = Certificate::from_der(der);
      if (!one) json.fail("a certificate is not X.509 in DER of at most 64 KiB");
      chain.push_back(std::move(*one));
    };
    json.object(value, "a certificate", Unknown::Ignored, {{"rawBytes", read_bytes}});
    if (chain.size() > kMostCertificates) {
      json.fail("it has more than " + std::to_string(kMostCertificates) + " certificates");
    }
  }

  void read_envelope(Value& value) {
    const auto read_payload = [&](Value& text) {
      envelope.payload_text = text.raw_json_token().size();
      envelope.payload = decode(json.string(text, "'payload'"), "'payload'");
    };
    const auto read_type = [&](Value& text) {
      check_payload_type(json.string(text, "'payloadType'"));
    };
    json.object(value, "'dsseEnvelope'", Unknown::Refused,
                {{"payload", read_payload},
                 {"payloadType", read_type},
                 {"signatures", [&](Value& list) { read_signatures(list); }}});
  }

  void check_payload_type(std::string_view type) const {
    if (type != kPayloadType) {
      json.fail("its payload is " + quote(type) + ", expected is " + quote(kPayloadType));
    }
  }

  void read_signatures(Value& value) {
    std::size_t count = 0;
    const auto read_signature = [&](Value& text) {
      envelope.signature = decode(json.string(text, "'sig'"), "a signature");
    };
    const auto read_id = [&](Value& text) {
      if (!json.is_null(text)) json.string(text, "'keyid'");
    };
    json.array(value, "'signatures'", [&](Value& one) {
      ++count;
      json.object(one, "a signature", Unknown::Refused,
                  {{"sig", read_signature}, {"keyid", read_id, kOptional}});
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

Envelope read_envelope(std::vector<std::byte> bytes, const std::string& label) {
  const std::size_t outside = outside_strings(as_text(bytes));
  StrictJson json(std::move(bytes), label + ": this is not the bundle of a signed model");
  if (outside > kMostOutsideStrings) {
    json.fail("its JSON has more than " + std::to_string(kMostOutsideStrings) +
              " bytes outside of strings");
  }
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
    if (sha256(envelope.payload) != policy.checked->payload) {
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
    const auto signing = std::ranges::find_if(
        keys, [&](const PublicKey* key) { return envelope.is_signed_by(*key); });
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
    if (!envelope.is_signed_by(key_of(leaf))) {
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

}  // namespace

Manifest open_payload(std::vector<std::byte> payload, const std::string& signer,
                      const std::optional<Sha256Digest>& subject, const std::string& label) {
  Manifest manifest = read_statement(std::move(payload), label);
  manifest.signer = signer;
  if (subject && manifest.root != *subject) {
    throw Error(ErrorKind::HashMismatch, label + ": it is about the model " +
                                             quote(manifest.model) + " with the root digest " +
                                             to_hex(manifest.root) + ", expected is " +
                                             to_hex(*subject));
  }
  return manifest;
}

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

void check_sigstore_bundle(std::vector<std::byte> json, const std::string& label) {
  check_bundle_size(json.size(), label);
  const std::size_t size = json.size();
  const Envelope envelope = read_envelope(std::move(json), label);
  if (!envelope.material.sigstore) {
    throw Error(ErrorKind::Crypto, label + ": it is signed by a " +
                                       (envelope.material.key ? "key" : "certificate") +
                                       ", and not with Sigstore: use trust.add()");
  }
  if (size - envelope.payload_text > kMostBesidePayload) {
    throw Error(ErrorKind::InvalidFormat, label + ": it has more than " +
                                              std::to_string(kMostBesidePayload) +
                                              " bytes beside its payload");
  }
}

Manifest open_bundle(std::vector<std::byte> json, const Policy& policy, const std::string& label) {
  check_bundle_size(json.size(), label);
  Envelope envelope = read_envelope(std::move(json), label);
  const std::string signer = Judge{envelope, policy, label}.signer();
  return open_payload(std::move(envelope.payload), signer, policy.subject, label);
}

}  // namespace tensorizer
