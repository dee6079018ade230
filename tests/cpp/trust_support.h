// Keys, certificates, statements and bundles for tests, made with libcrypto alone.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codec/ecdsa.h"
#include "codec/hmac.h"
#include "support.h"
#include "trust/bundle.h"
#include "trust/certificate.h"
#include "trust/policy.h"

namespace tensorizer::testing_support {

inline SharedKey new_key(const char* curve = "P-256") {
  return SharedKey(EVP_EC_gen(curve), EVP_PKEY_free);
}

template <typename Write>
std::string pem_of(const Write& write) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> out(BIO_new(BIO_s_mem()), BIO_free);
  EXPECT_EQ(write(out.get()), 1);
  char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  return {text, static_cast<std::size_t>(size)};
}

inline std::string public_pem(const SharedKey& key) {
  return pem_of([&](BIO* out) { return PEM_write_bio_PUBKEY(out, key.get()); });
}

// Encrypted if there is a passphrase.
inline std::string private_pem(const SharedKey& key, std::string_view passphrase = {}) {
  return pem_of([&](BIO* out) {
    return PEM_write_bio_PKCS8PrivateKey(
        out, key.get(), passphrase.empty() ? nullptr : EVP_aes_256_cbc(), passphrase.data(),
        static_cast<int>(passphrase.size()), nullptr, nullptr);
  });
}

inline PrivateKey signing_key(const SharedKey& key) {
  return PrivateKey::from_pem(SecretBytes(as_bytes(private_pem(key))), {}, "key");
}

struct CertificateText {
  std::string name = "signer";
  std::vector<std::pair<int, const char*>> extensions{};
  long begin = -3600;  // seconds from now
  long end = 3600;
  const EVP_MD* hash = EVP_sha256();
};

struct Issued {
  SharedKey key;
  std::shared_ptr<X509> x509;

  std::vector<std::byte> der() const {
    std::vector<std::byte> bytes(static_cast<std::size_t>(i2d_X509(x509.get(), nullptr)));
    auto* out = reinterpret_cast<unsigned char*>(bytes.data());
    i2d_X509(x509.get(), &out);
    return bytes;
  }
  Certificate certificate() const { return *Certificate::from_der(der()); }
  std::string pem() const {
    return pem_of([&](BIO* out) { return PEM_write_bio_X509(out, x509.get()); });
  }
};

// Self-signed without an issuer.
inline Issued issue(const CertificateText& text, const Issued* issuer = nullptr,
                    SharedKey key = new_key()) {
  Issued made{std::move(key), std::shared_ptr<X509>(X509_new(), X509_free)};
  X509* const x509 = made.x509.get();
  static long serial = 0;
  X509_set_version(x509, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(x509), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(x509), text.begin);
  X509_gmtime_adj(X509_getm_notAfter(x509), text.end);
  X509_set_pubkey(x509, made.key.get());
  X509_NAME* const name = X509_get_subject_name(x509);
  const auto add = [&](const char* field, const std::string& value) {
    X509_NAME_add_entry_by_txt(name, field, MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(value.data()),
                               static_cast<int>(value.size()), -1, 0);
  };
  add("O", "Example");
  add("CN", text.name);
  const Issued& by = issuer == nullptr ? made : *issuer;
  X509_set_issuer_name(x509, X509_get_subject_name(by.x509.get()));
  for (const auto& [nid, value] : text.extensions) {
    const std::unique_ptr<X509_EXTENSION, decltype(&X509_EXTENSION_free)> extension(
        X509V3_EXT_conf_nid(nullptr, nullptr, nid, value), X509_EXTENSION_free);
    EXPECT_NE(extension, nullptr) << value;
    X509_add_ext(x509, extension.get(), -1);
  }
  EXPECT_GT(X509_sign(x509, by.key.get(), text.hash), 0);
  return made;
}

inline CertificateText authority(std::string name) {
  return {std::move(name),
          {{NID_basic_constraints, "critical,CA:TRUE"}, {NID_key_usage, "critical,keyCertSign"}}};
}

inline CertificateText signer(const char* alternative_names = "email:signer@example.com") {
  return {"signer",
          {{NID_key_usage, "critical,digitalSignature"},
           {NID_ext_key_usage, "codeSigning"},
           {NID_subject_alt_name, alternative_names}}};
}

// ---- statements

struct ResourceText {
  std::string name;
  std::string digest = std::string(64, '1');
  std::string algorithm = "sha256";
};

struct StatementText {
  std::vector<ResourceText> resources{{"config.json"}, {"model.safetensors", std::string(64, '2')}};
  std::string serialization = R"("method":"files","hash_type":"sha256","allow_symlinks":false)";

  std::string root() const {
    Sha256 hash;
    for (const ResourceText& resource : resources) {
      std::vector<std::byte> digest(resource.digest.size() / 2);
      from_hex(resource.digest, digest);
      hash.update(digest);
    }
    return to_hex(hash.finish());
  }

  std::string text() const {
    std::string list;
    for (const ResourceText& resource : resources) {
      list += (list.empty() ? R"({"name":")" : R"(,{"name":")") + resource.name +
              R"(","digest":")" + resource.digest + R"(","algorithm":")" + resource.algorithm +
              R"("})";
    }
    return R"({"_type":"https://in-toto.io/Statement/v1","subject":[{"name":"m","digest":)"
           R"({"sha256":")" +
           root() +
           R"("}}],"predicateType":"https://model_signing/signature/v1.0","predicate":)"
           R"({"resources":[)" +
           list + R"(],"serialization":{)" + serialization + "}}}";
  }
};

inline StatementText shards_of(std::vector<ResourceText> resources, std::string size = "4") {
  return {std::move(resources),
          R"("method":"shards","hash_type":"sha256","allow_symlinks":false,"shard_size":)" + size};
}

// Returns `text` with the only `from` replaced.
inline std::string with(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  if (at == text.npos) return text;
  EXPECT_EQ(text.find(from, at + 1), text.npos) << from;
  return text.replace(at, from.size(), to);
}

// ---- bundles

inline std::string key_material(const PublicKey& key) {
  return R"({"publicKey":{"hint":")" + key.hint() + R"("}})";
}

inline std::string chain_material(const std::vector<std::vector<std::byte>>& chain) {
  std::string list;
  for (const auto& der : chain) {
    list += (list.empty() ? R"({"rawBytes":")" : R"(,{"rawBytes":")") + to_base64(der) + R"("})";
  }
  return R"({"x509CertificateChain":{"certificates":[)" + list + R"(]},"tlogEntries":[]})";
}

inline std::string bundle_of(std::string_view payload, const PrivateKey& key,
                             const std::string& material) {
  const std::string message = signed_prefix(payload.size()) + std::string(payload);
  return R"({"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":)" +
         material + R"(,"dsseEnvelope":{"payload":")" + to_base64(as_bytes(payload)) +
         R"(","payloadType":"application/vnd.in-toto+json","signatures":[{"sig":")" +
         to_base64(key.sign(as_bytes(message))) + R"(","keyid":""}]}})";
}

inline Policy trusting(const PublicKey& key) {
  const std::vector<Pem> keys{{"'key'", key.pem()}};
  return make_policy("'policy'", keys, {}, {});
}

inline Policy trusting(const std::string& root, std::vector<std::string> identities,
                       std::optional<std::time_t> at = {}) {
  const std::vector<Pem> roots{{"'root'", root}};
  return make_policy("'policy'", {}, roots, identities, at);
}

inline std::vector<std::byte> copy_of(std::string_view text) {
  const ConstBytes bytes = as_bytes(text);
  return {bytes.begin(), bytes.end()};
}

inline Manifest open(std::string_view bundle, const Policy& policy) {
  return open_bundle(copy_of(bundle), policy, "'b'");
}

// Returns the message of the Error of this kind that refuses a bundle, without its kind.
inline std::string refusal(ErrorKind kind, std::string_view bundle, const Policy& policy) {
  const Error error = error_of([&] { open(bundle, policy); });
  EXPECT_EQ(error.kind(), kind) << error.what();
  EXPECT_TRUE(error.message().starts_with("'b': ")) << error.what();
  return std::string(error.message());
}

// ---- files

// Returns a file of tests/data/oms.
inline std::string oms_file(const std::string& name) {
  const std::filesystem::path tests = std::filesystem::path(__FILE__).parent_path().parent_path();
  std::ifstream in(tests / "data" / "oms" / name, std::ios::binary);
  EXPECT_TRUE(in.is_open()) << name;
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace tensorizer::testing_support
