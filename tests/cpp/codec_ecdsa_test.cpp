// Keys and signatures of ECDSA.
#include <openssl/core_names.h>
#include <openssl/rsa.h>

#include "trust_support.h"

namespace tensorizer {
namespace {

using namespace testing_support;

const std::string kMessage = "what is signed";

void expect_no_key(const std::string& pem, std::string_view why) {
  const Error error = error_of([&] { PublicKey::from_pem(pem, "'k'"); });
  EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
  EXPECT_TRUE(error.message().starts_with("'k': ")) << error.what();
  EXPECT_TRUE(contains(error.message(), why)) << error.what();
}

PrivateKey private_key(std::string_view pem, std::string_view passphrase = {}) {
  return PrivateKey::from_pem(SecretBytes(as_bytes(pem)), as_bytes(passphrase), "'k'");
}

class EcdsaTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Curves, EcdsaTest, ::testing::Values("P-256", "P-384", "P-521"));

TEST_P(EcdsaTest, SignaturesBelongToAKeyAndAMessage) {
  const SharedKey made = new_key(GetParam());
  const PrivateKey key = private_key(private_pem(made));
  const PublicKey known = PublicKey::from_pem(public_pem(made), "'k'");
  EXPECT_TRUE(known == key.public_key());
  const std::vector<std::byte> signature = key.sign(as_bytes(kMessage));
  EXPECT_TRUE(known.verifies({as_bytes(kMessage)}, signature));
  EXPECT_FALSE(known.verifies({as_bytes(kMessage + ".")}, signature));
  EXPECT_FALSE(known.verifies({as_bytes(kMessage)}, {}));
  EXPECT_FALSE(known.verifies({}, signature));
  const PublicKey other = PublicKey::from_pem(public_pem(new_key(GetParam())), "'k'");
  EXPECT_FALSE(other == known);
  EXPECT_FALSE(other.verifies({as_bytes(kMessage)}, signature));
  EXPECT_TRUE(key.public_key().verifies({}, key.sign({})));
}

TEST_P(EcdsaTest, NoBitOfASignatureCanChange) {
  const PrivateKey key = private_key(private_pem(new_key(GetParam())));
  std::vector<std::byte> signature = key.sign(as_bytes(kMessage));
  for (std::byte& byte : signature) {
    byte ^= std::byte{1};
    EXPECT_FALSE(key.public_key().verifies({as_bytes(kMessage)}, signature));
    byte ^= std::byte{1};
  }
  signature.push_back(std::byte{0});
  EXPECT_FALSE(key.public_key().verifies({as_bytes(kMessage)}, signature));
}

TEST_P(EcdsaTest, TheHashIsThatOfTheCurve) {
  const SharedKey made = new_key(GetParam());
  const std::string_view curve = GetParam();
  const EVP_MD* const hash = curve == "P-256"   ? EVP_sha256()
                             : curve == "P-384" ? EVP_sha384()
                                                : EVP_sha512();
  const std::vector<std::byte> signature = signing_key(made).sign(as_bytes(kMessage));
  for (const EVP_MD* const one : {EVP_sha256(), EVP_sha384(), EVP_sha512()}) {
    const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                          EVP_MD_CTX_free);
    ASSERT_EQ(EVP_DigestVerifyInit(context.get(), nullptr, one, nullptr, made.get()), 1);
    EXPECT_EQ(
        EVP_DigestVerify(context.get(), reinterpret_cast<const unsigned char*>(signature.data()),
                         signature.size(), reinterpret_cast<const unsigned char*>(kMessage.data()),
                         kMessage.size()) == 1,
        one == hash);
  }
}

TEST_P(EcdsaTest, EncryptedKeysNeedTheirPassphrase) {
  const SharedKey made = new_key(GetParam());
  const std::string pem = private_pem(made, "pass word");
  EXPECT_EQ(private_key(pem, "pass word").public_key().pem(), public_pem(made));
  const Error none = error_of([&] { private_key(pem); });
  EXPECT_EQ(none.kind(), ErrorKind::Crypto);
  EXPECT_TRUE(contains(none.message(), "'k': the private key is encrypted")) << none.what();
  const Error wrong = error_of([&] { private_key(pem, "passw0rd"); });
  EXPECT_EQ(wrong.kind(), ErrorKind::Crypto);
  EXPECT_TRUE(contains(wrong.message(), "the passphrase of the private key is wrong"));
  EXPECT_FALSE(contains(wrong.message(), "passw0rd"));
  EXPECT_EQ(kind_of([&] { private_key(pem, std::string(2000, 'x')); }), ErrorKind::Crypto);
  EXPECT_EQ(private_key(private_pem(made), "not needed").public_key().pem(), public_pem(made));
}

TEST(EcdsaKeyTest, TheHintIsTheHashOfThePem) {
  const PublicKey key = PublicKey::from_pem(oms_file("model_signing-1.1.1/p384.pub"), "'k'");
  EXPECT_EQ(key.pem(), oms_file("model_signing-1.1.1/p384.pub"));
  EXPECT_EQ(key.hint(), to_hex(sha256(as_bytes(key.pem()))));
  EXPECT_EQ(key.hint().size(), 64U);
}

TEST(EcdsaKeyTest, TheEncodingOfThePointMakesNoDifference) {
  const SharedKey made = new_key();
  const std::string plain = public_pem(made);
  ASSERT_EQ(EVP_PKEY_set_utf8_string_param(made.get(), OSSL_PKEY_PARAM_EC_POINT_CONVERSION_FORMAT,
                                           OSSL_PKEY_EC_POINT_CONVERSION_FORMAT_COMPRESSED),
            1);
  const std::string compressed = public_pem(made);
  ASSERT_NE(compressed, plain);
  EXPECT_EQ(PublicKey::from_pem(compressed, "'k'").pem(), plain);
}

TEST(EcdsaKeyTest, ReadsTheOlderFormOfPrivateKeys) {
  const SharedKey made = new_key();
  const std::string pem = pem_of([&](BIO* out) {
    return PEM_write_bio_PrivateKey_traditional(out, made.get(), nullptr, nullptr, 0, nullptr,
                                                nullptr);
  });
  ASSERT_TRUE(contains(pem, "BEGIN EC PRIVATE KEY"));
  EXPECT_EQ(private_key(pem).public_key().pem(), public_pem(made));
  // As `openssl ecparam -genkey` writes it.
  const std::string parameters =
      "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n";
  EXPECT_EQ(private_key(parameters + pem).public_key().pem(), public_pem(made));
}

TEST(EcdsaKeyTest, RefusesOtherCurvesAndKinds) {
  expect_no_key(public_pem(new_key("secp256k1")),
                "this is a key on the curve secp256k1; expected is one of the curves P-256");
  expect_no_key(public_pem(new_key("brainpoolP256r1")), "curve brainpoolP256r1");
  const SharedKey rsa(EVP_RSA_gen(2048), EVP_PKEY_free);
  expect_no_key(public_pem(rsa), "this is a key of the kind RSA; expected is");
  const SharedKey edwards(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"), EVP_PKEY_free);
  expect_no_key(public_pem(edwards), "this is a key of the kind ED25519; expected is");
  EXPECT_TRUE(contains(message_of([&] { private_key(private_pem(rsa)); }),
                       "this is a key of the kind RSA"));
  EXPECT_TRUE(contains(message_of([&] { private_key(private_pem(new_key("secp256k1"))); }),
                       "the curve secp256k1"));
}

TEST(EcdsaKeyTest, RefusesOtherTexts) {
  const SharedKey made = new_key();
  expect_no_key("", "this is no PEM; expected is a public key");
  expect_no_key("ssh-ed25519 AAAA", "this is no PEM");
  expect_no_key(std::string((1 << 20) + 1, 'x'), "this is too large for a key");
  EXPECT_TRUE(contains(message_of([] { private_key(std::string((1 << 20) + 1, 'x')); }),
                       "this is too large for a key"));
  expect_no_key(private_pem(made), "this is a private key; expected is a public key");
  expect_no_key(private_pem(made, "word"), "this is a private key");
  expect_no_key(issue(signer()).pem(), "this is a certificate");
  expect_no_key(with(public_pem(made), "-----END", "-----"), "this is a damaged public key");
  EXPECT_TRUE(contains(message_of([&] { private_key(public_pem(made)); }),
                       "this is a public key; expected is a private key"));
  EXPECT_TRUE(contains(message_of([&] { private_key("nothing"); }), "this is no PEM"));
  const std::string cut = private_pem(made).substr(0, 60);
  const std::string message = message_of([&] { private_key(cut); });
  EXPECT_TRUE(contains(message, "this is a damaged private key")) << message;
  EXPECT_FALSE(contains(message, cut.substr(30)));
}

TEST(EcdsaKeyTest, RefusesAPointThatIsNotOnTheCurve) {
  const std::string pem = public_pem(new_key());
  std::size_t damaged = 0;
  for (const std::size_t at : {70U, 90U, 110U, 140U}) {
    std::string other = pem;
    other[at] = other[at] == 'A' ? 'B' : 'A';
    try {
      PublicKey::from_pem(other, "'k'");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
      ++damaged;
    }
  }
  EXPECT_EQ(damaged, 4U);
  // The point at infinity.
  expect_no_key(
      "-----BEGIN PUBLIC KEY-----\nMBkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDAgAA\n-----END PUBLIC "
      "KEY-----\n",
      "the public key is damaged: its point is no key of its curve");
}

}  // namespace
}  // namespace tensorizer
