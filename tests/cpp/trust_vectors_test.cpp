// Bundles that others made: the vectors of the specification, and those of model_signing.
#include <algorithm>
#include <array>

#include "trust_support.h"

namespace tensorizer {
namespace {

using namespace testing_support;

std::string vector(const std::string& name) { return oms_file("vectors/" + name + ".bundle.json"); }

std::string made_by_model_signing(const std::string& name) {
  return oms_file("model_signing-1.1.1/" + name);
}

// The certificates of the vectors are valid then, on 1 January 2026.
constexpr std::time_t kTime = 1767225600;

// Returns the text of a member whose value is a string.
std::string member(const std::string& json, std::string_view key, std::size_t from = 0) {
  const std::size_t at = json.find('"' + std::string(key) + '"', from);
  EXPECT_NE(at, json.npos);
  const std::size_t begin = json.find('"', json.find(':', at)) + 1;
  return json.substr(begin, json.find('"', begin) - begin);
}

std::string payload(const std::string& bundle) {
  return std::string(as_text(from_base64(member(bundle, "payload")).value()));
}

std::string pem_of_der(const std::string& base64) {
  return "-----BEGIN CERTIFICATE-----\n" + base64 + "\n-----END CERTIFICATE-----\n";
}

void expect_files_of_vector(const Manifest& manifest) {
  ASSERT_EQ(manifest.files.size(), 2U);
  EXPECT_EQ(manifest.files[0].name, "signme-1");
  EXPECT_EQ(manifest.files[1].name, "signme-2");
  EXPECT_EQ(to_hex(manifest.root),
            "92745110b1ab4368471cbe31664e10174e954b113a3df333db860317b2c6dec4");
  EXPECT_EQ(manifest.model, "model");
  EXPECT_FALSE(manifest.in_shards());
  EXPECT_TRUE(std::ranges::count(manifest.ignored, "ignore-me") == 1);
}

TEST(OmsVectors, TheOneOfAKeyNamesIt) {
  const std::string bundle = vector("valid/key");
  const PublicKey other = PublicKey::from_pem(made_by_model_signing("p384.pub"), "'k'");
  EXPECT_EQ(refusal(ErrorKind::Crypto, bundle, trusting(other)),
            "'b': it says that it is signed by the key "
            "'e8450dec4eb99dae995da9af1bc2cc9f76ed669ee2e744f57abba763df3e3f8e', expected is the "
            "key " +
                other.hint());
  expect_files_of_vector(open_payload(copy_of(payload(bundle)), "", {}, "'b'"));
}

TEST(OmsVectors, TheOneOfACertificateIsTrustedByItsRoot) {
  const std::string bundle = vector("valid/certificate");
  const std::string root = pem_of_der(member(bundle, "rawBytes", bundle.rfind("rawBytes") - 1));
  const Policy policy = trusting(root, {"CN=intermediate-ca"}, kTime);
  const Manifest manifest = open(bundle, policy);
  EXPECT_TRUE(contains(manifest.signer, "(issued by 'CN=intermediate-ca')")) << manifest.signer;
  expect_files_of_vector(manifest);
  constexpr std::time_t kLater = 2200000000;
  EXPECT_TRUE(
      contains(refusal(ErrorKind::Crypto, bundle, trusting(root, {"CN=intermediate-ca"}, kLater)),
               "certificate has expired"));
  const Issued other = issue(authority("root-ca"));
  refusal(ErrorKind::Crypto, bundle, trusting(other.pem(), {"CN=intermediate-ca"}, kTime));
}

TEST(OmsVectors, TheOneOfSigstoreIsForPython) {
  const std::string bundle = vector("valid/sigstore");
  const Policy policy = trusting(PublicKey::from_pem(made_by_model_signing("p384.pub"), "'k'"));
  EXPECT_EQ(refusal(ErrorKind::Crypto, bundle, policy),
            "'b': it is signed with Sigstore, which only Python can check");
  const Manifest manifest = open_payload(copy_of(payload(bundle)), "stefan", {}, "'b'");
  EXPECT_EQ(manifest.signer, "stefan");
  EXPECT_FALSE(manifest.files.empty());
}

TEST(OmsVectors, InvalidOnesAreRefused) {
  const Policy policy = trusting(PublicKey::from_pem(made_by_model_signing("p384.pub"), "'k'"));
  for (const auto& [name, why] : std::vector<std::array<const char*, 2>>{
           {"empty", "malformed"},
           {"missing-envelope", "it has no 'dsseEnvelope'"},
           {"missing-tlog-entries", "without 'tlogEntries'"},
           {"missing-verification-material", "it has no 'verificationMaterial'"}}) {
    const std::string message =
        refusal(ErrorKind::InvalidFormat, vector("invalid/" + std::string(name)), policy);
    EXPECT_TRUE(contains(message, why)) << message;
  }
  const std::string text = payload(vector("invalid-payload/wrong-predicate"));
  EXPECT_TRUE(contains(message_of([&] { open_payload(copy_of(text), "", {}, "'b'"); }),
                       "its predicate type is 'https://example.com/wrong-predicate/v1.0'"));
}

// ---- model_signing

const std::string kText =
    "sub/\xc3\xbc"
    "ber \"x\"\xe2\x80\xa8\xf0\x9f\x98\x80.txt";

void expect_digest(const Manifest& manifest, const std::string& name, std::string_view content) {
  const ManifestFile* const file = manifest.find(name);
  ASSERT_NE(file, nullptr) << name;
  EXPECT_TRUE(same(manifest.digests_of(*file), sha256(as_bytes(content)))) << name;
}

std::string large_content() {
  std::string content;
  for (int i = 0; i < 30000; ++i) content += static_cast<char>(i % 250);
  return content;
}

void expect_files(const Manifest& manifest) {
  EXPECT_FALSE(manifest.in_shards());
  EXPECT_EQ(manifest.model, "model");
  ASSERT_EQ(manifest.files.size(), 5U);
  expect_digest(manifest, "config.json", "{}\n");
  expect_digest(manifest, "empty", "");
  expect_digest(manifest, "model.safetensors", large_content());
  expect_digest(manifest, "sub/a:0:4", "four");
  expect_digest(manifest, kText, "text\n");
}

void expect_shards(const Manifest& manifest) {
  EXPECT_EQ(manifest.shard_size, 4096U);
  ASSERT_EQ(manifest.files.size(), 4U);
  expect_digest(manifest, "config.json", "{}\n");
  expect_digest(manifest, "sub/a:0:4", "four");
  expect_digest(manifest, kText, "text\n");
  const ManifestFile* const large = manifest.find("model.safetensors");
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(large->size, 30000U);
  ASSERT_EQ(large->count, 8U);
  const std::string content = large_content();
  for (std::size_t i = 0; i < large->count; ++i) {
    EXPECT_TRUE(same(manifest.digests_of(*large).subspan(i * kSha256Size, kSha256Size),
                     sha256(as_bytes(content.substr(i * 4096, 4096)))));
  }
}

TEST(ModelSigning, KeysOfAllCurves) {
  for (const std::string curve : {"p256", "p384", "p521"}) {
    const PublicKey key = PublicKey::from_pem(made_by_model_signing(curve + ".pub"), "'k'");
    const Manifest manifest = open(made_by_model_signing("files-" + curve + ".sig"), trusting(key));
    EXPECT_EQ(manifest.signer, "the key " + key.hint());
    EXPECT_TRUE(contains(made_by_model_signing("files-" + curve + ".sig"), key.hint()));
    expect_files(manifest);
  }
}

TEST(ModelSigning, Shards) {
  const PublicKey key = PublicKey::from_pem(made_by_model_signing("p256.pub"), "'k'");
  expect_shards(open(made_by_model_signing("shards-p256.sig"), trusting(key)));
}

TEST(ModelSigning, Certificates) {
  const std::string root = made_by_model_signing("root.pem");
  for (const char* const who : {"signer@example.com", "CN=signer,O=Example"}) {
    const Policy policy = trusting(root, {who});
    const Manifest manifest = open(made_by_model_signing("files-certificate.sig"), policy);
    EXPECT_EQ(manifest.signer, "'CN=signer,O=Example' (issued by 'CN=intermediate,O=Example')");
    expect_files(manifest);
    expect_shards(open(made_by_model_signing("shards-certificate.sig"), policy));
  }
}

}  // namespace
}  // namespace tensorizer
