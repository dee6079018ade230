// Which certificates may sign.
#include "base/world.h"
#include "trust_support.h"

namespace tensorizer {
namespace {

using namespace testing_support;

const std::string kWho = "signer@example.com";

struct Chain {
  Issued root = issue(authority("root"));
  Issued intermediate = issue(authority("intermediate"), &root);
  Issued leaf = issue(signer(), &intermediate);

  std::string bundle() const { return bundle({leaf.der(), intermediate.der()}); }
  std::string bundle(const std::vector<std::vector<std::byte>>& chain) const {
    return bundle_of(StatementText().text(), signing_key(leaf.key), chain_material(chain));
  }
  Policy policy() const { return trusting(root.pem(), {kWho}); }

  void expect_untrusted(std::string_view why) const { expect_untrusted(bundle(), policy(), why); }
  static void expect_untrusted(const std::string& bundle, const Policy& policy,
                               std::string_view why) {
    const std::string message = refusal(ErrorKind::Crypto, bundle, policy);
    EXPECT_TRUE(contains(message, why)) << message;
  }
};

Chain with_leaf(const CertificateText& text, SharedKey key = new_key()) {
  Chain chain;
  chain.leaf = issue(text, &chain.intermediate, std::move(key));
  return chain;
}

TEST(Certificate, ChainsToARootAreTrusted) {
  const Chain chain;
  const Manifest manifest = open(chain.bundle(), chain.policy());
  EXPECT_EQ(manifest.signer, "'CN=signer,O=Example' (issued by 'CN=intermediate,O=Example')");
  EXPECT_EQ(manifest.files.size(), 2U);
  // The root may be among them, in any place but the first.
  EXPECT_EQ(open(chain.bundle({chain.leaf.der(), chain.root.der(), chain.intermediate.der()}),
                 chain.policy())
                .files.size(),
            2U);
}

TEST(Certificate, AnIntermediateOrTheLeafMayBeTheAnchor) {
  const Chain chain;
  const Policy intermediate = trusting(chain.intermediate.pem(), {kWho});
  EXPECT_EQ(open(chain.bundle({chain.leaf.der()}), intermediate).files.size(), 2U);
  EXPECT_EQ(open(chain.bundle(), intermediate).files.size(), 2U);
  EXPECT_EQ(open(chain.bundle(), trusting(chain.leaf.pem(), {kWho})).files.size(), 2U);
}

TEST(Certificate, AnyOfSeveralRootsAndIdentities) {
  const Chain chain;
  const Policy policy =
      trusting(issue(authority("other")).pem() + chain.root.pem(), {"somebody", kWho});
  EXPECT_EQ(open(chain.bundle(), policy).files.size(), 2U);
}

TEST(Certificate, ChainsHaveAtMostEightIntermediates) {
  Chain chain;
  std::vector<Issued> intermediates{chain.intermediate};
  for (int i = 0; i < 8; ++i) {
    intermediates.push_back(issue(authority("next " + std::to_string(i)), &intermediates.back()));
  }
  for (const std::size_t count : {8U, 9U}) {
    chain.leaf = issue(signer(), &intermediates[count - 1]);
    std::vector<std::vector<std::byte>> ders{chain.leaf.der()};
    for (std::size_t i = 0; i < count; ++i) ders.push_back(intermediates[i].der());
    if (count == 8) {
      EXPECT_EQ(open(chain.bundle(ders), chain.policy()).files.size(), 2U);
    } else {
      chain.expect_untrusted(chain.bundle(ders), chain.policy(), "certificate chain too long");
    }
  }
}

TEST(Certificate, OtherRootsAreNot) {
  const Chain chain;
  const Issued other = issue(authority("root"));  // of the same name
  chain.expect_untrusted(chain.bundle(), trusting(other.pem(), {kWho}), "is not trusted: ");
  chain.expect_untrusted(chain.bundle({chain.leaf.der()}), chain.policy(),
                         "unable to get local issuer certificate; expected is "
                         "'signer@example.com' with a certificate of 'CN=root,O=Example'");
  // Roots in the bundle are no roots.
  chain.expect_untrusted(
      chain.bundle({chain.leaf.der(), chain.intermediate.der(), chain.root.der()}),
      trusting(other.pem(), {kWho}), "is not trusted: ");
  const PublicKey key = PublicKey::from_pem(public_pem(chain.leaf.key), "'k'");
  chain.expect_untrusted(chain.bundle(), trusting(key),
                         "it is signed by the certificate of 'CN=signer,O=Example'");
}

TEST(Certificate, OnlyAuthoritiesIssue) {
  Chain chain;
  const Issued forged = issue(signer(), &chain.leaf);
  const std::string bundle =
      bundle_of(StatementText().text(), signing_key(forged.key),
                chain_material({forged.der(), chain.leaf.der(), chain.intermediate.der()}));
  chain.expect_untrusted(bundle, chain.policy(), "is not trusted: ");
  // Nor for something else.
  CertificateText servers = authority("intermediate");
  servers.extensions.emplace_back(NID_ext_key_usage, "serverAuth");
  chain.intermediate = issue(servers, &chain.root);
  chain.leaf = issue(signer(), &chain.intermediate);
  chain.expect_untrusted(
      "the extended key usage of 'CN=intermediate,O=Example' has no codeSigning");
  // But who trusts it by name does so for this.
  const Policy named = trusting(chain.intermediate.pem(), {kWho});
  EXPECT_EQ(open(chain.bundle(), named).files.size(), 2U);
}

TEST(Certificate, MustBeValidNowOrWhenThePolicySays) {
  CertificateText ended = signer();
  ended.begin = -7200;
  ended.end = -3600;
  const Chain chain = with_leaf(ended);
  chain.expect_untrusted("is not trusted: certificate has expired");
  const std::time_t now = WallClock::seconds();
  EXPECT_TRUE(contains(
      refusal(ErrorKind::Crypto, chain.bundle(), trusting(chain.root.pem(), {kWho}, now - 5000)),
      "certificate is not yet valid (the certificate of "));
  // Valid at the time when all three were.
  Chain old;
  CertificateText root = authority("root");
  CertificateText intermediate = authority("intermediate");
  root.begin = intermediate.begin = -9000;
  old.root = issue(root);
  old.intermediate = issue(intermediate, &old.root);
  old.leaf = issue(ended, &old.intermediate);
  EXPECT_EQ(open(old.bundle(), trusting(old.root.pem(), {kWho}, now - 5000)).files.size(), 2U);
  old.expect_untrusted("certificate has expired");
  CertificateText later = signer();
  later.begin = 1800;
  with_leaf(later).expect_untrusted("certificate is not yet valid");
}

TEST(Certificate, TheClockIsThatOfTheWorld) {
  struct Later : World {
    WallClock::time_point date() noexcept override { return World::date() + std::chrono::hours(2); }
  };
  const Chain chain;
  EXPECT_EQ(open(chain.bundle(), chain.policy()).files.size(), 2U);
  const Later later;
  chain.expect_untrusted("certificate has expired");
}

TEST(Certificate, TheLeafMustBeAllowedToSign) {
  const auto expect = [](std::vector<std::pair<int, const char*>> extensions, const char* why) {
    extensions.emplace_back(NID_subject_alt_name, "email:signer@example.com");
    const Chain chain = with_leaf({"signer", std::move(extensions)});
    if (why == nullptr) {
      EXPECT_EQ(open(chain.bundle(), chain.policy()).files.size(), 2U);
    } else {
      chain.expect_untrusted("must not sign models: " + std::string(why));
    }
  };
  expect({}, nullptr);
  expect({{NID_ext_key_usage, "anyExtendedKeyUsage"}}, nullptr);
  expect({{NID_ext_key_usage, "clientAuth,codeSigning"}}, nullptr);
  expect({{NID_key_usage, "digitalSignature,keyCertSign"}}, nullptr);
  expect({{NID_key_usage, "keyAgreement"}}, "its key usage has no digitalSignature");
  expect({{NID_key_usage, "keyAgreement"}, {NID_ext_key_usage, "codeSigning"}},
         "its key usage has no digitalSignature");
  expect({{NID_ext_key_usage, "serverAuth,clientAuth"}},
         "its extended key usage has no codeSigning");
  expect({{NID_key_usage, "digitalSignature"}, {NID_ext_key_usage, "serverAuth"}},
         "its extended key usage has no codeSigning");
}

TEST(Certificate, MalformedExtensionsAllowNothing) {
  const Chain chain = with_leaf({"signer", {{NID_key_usage, "DER:0500"}}});
  EXPECT_STREQ(chain.leaf.certificate().unusable(), "an extension of it is malformed");
  chain.expect_untrusted("is not trusted: ");
}

TEST(Certificate, MustHaveOneOfTheIdentities) {
  const Chain chain = with_leaf(
      signer("email:signer@example.com,URI:https://example.com/ci?a=b,DNS:sign.example.com"));
  for (const char* const who : {"signer@example.com", "https://example.com/ci?a=b",
                                "sign.example.com", "CN=signer,O=Example"}) {
    EXPECT_EQ(open(chain.bundle(), trusting(chain.root.pem(), {who})).files.size(), 2U) << who;
  }
  for (const char* const who :
       {"Signer@example.com", "signer@example.co", "https://example.com/ci", "example.com",
        "*.example.com", "CN=signer", "O=Example,CN=signer", "cn=signer,o=Example", "signer",
        "CN=signer,O=Example,C=DE", "signer@example.com,sign.example.com"}) {
    const std::string message =
        refusal(ErrorKind::Crypto, chain.bundle(), trusting(chain.root.pem(), {who}));
    EXPECT_TRUE(contains(message,
                         "whose identities are 'CN=signer,O=Example', 'signer@example.com', "
                         "'https://example.com/ci?a=b', 'sign.example.com'; expected is "))
        << message;
  }
}

TEST(Certificate, OnlySomeIdentitiesAreListed) {
  std::string names = "DNS:0.example.com";
  for (int i = 1; i < 1000; ++i) names += ",DNS:" + std::to_string(i) + ".example.com";
  const Chain chain = with_leaf(signer(names.c_str()));
  chain.expect_untrusted("'6.example.com' and more; expected is");
  EXPECT_LT(refusal(ErrorKind::Crypto, chain.bundle(), chain.policy()).size(), 600U);
}

TEST(Certificate, NoKindOfIdentityPassesForAnother) {
  const auto expect_none = [](const char* names, const char* who) {
    const Chain chain = with_leaf(signer(names));
    chain.expect_untrusted(chain.bundle(), trusting(chain.root.pem(), {who}), "whose identities");
  };
  expect_none("URI:signer@example.com", "signer@example.com");
  expect_none("DNS:signer@example.com", "signer@example.com");
  expect_none("DNS:https://example.com", "https://example.com");
  expect_none("URI:sign.example.com", "sign.example.com");
  expect_none("URI:CN=root", "CN=root");
  expect_none("DNS:CN=root", "CN=root");
  // A policy that was made without identities trusts nobody.
  const Chain chain;
  Policy policy = chain.policy();
  policy.identities.clear();
  chain.expect_untrusted(chain.bundle(), policy, "whose identities");
}

TEST(Certificate, SubjectsAreWrittenAsRfc4514) {
  CertificateText text = signer();
  text.name = "J\xc3\xbcrgen, \"x\"=+";
  const Chain chain = with_leaf(text);
  const std::string subject = "CN=J\xc3\xbcrgen\\, \\\"x\\\"=\\+,O=Example";
  EXPECT_EQ(chain.leaf.certificate().subject(), subject);
  EXPECT_EQ(open(chain.bundle(), trusting(chain.root.pem(), {subject})).files.size(), 2U);
  text.name = "a\nb";
  EXPECT_TRUE(contains(issue(text).certificate().describe(), "'CN=a\\\\0Ab,O=Example'"))
      << issue(text).certificate().describe();
}

TEST(Certificate, RefusesWeakSignatures) {
  CertificateText weak = signer();
  weak.hash = EVP_sha1();
  with_leaf(weak).expect_untrusted("CA signature digest algorithm too weak");
  Chain chain;
  chain.root = issue(authority("root"), nullptr, SharedKey(EVP_RSA_gen(1024), EVP_PKEY_free));
  chain.intermediate = issue(authority("intermediate"), &chain.root);
  chain.leaf = issue(signer(), &chain.intermediate);
  chain.expect_untrusted("CA certificate key too weak");
  chain.root = issue(authority("root"), nullptr, SharedKey(EVP_RSA_gen(2048), EVP_PKEY_free));
  chain.intermediate = issue(authority("intermediate"), &chain.root);
  chain.leaf = issue(signer(), &chain.intermediate);
  EXPECT_EQ(open(chain.bundle(), chain.policy()).files.size(), 2U);
}

TEST(Certificate, TheLeafMustHaveSigned) {
  Chain chain;
  const std::string material = chain_material({chain.leaf.der(), chain.intermediate.der()});
  const std::string other =
      bundle_of(StatementText().text(), signing_key(chain.intermediate.key), material);
  chain.expect_untrusted(other, chain.policy(),
                         "its signature by the certificate of 'CN=signer,O=Example'");
  chain.leaf = issue(signer(), &chain.intermediate, SharedKey(EVP_RSA_gen(2048), EVP_PKEY_free));
  const std::string rsa = bundle_of(StatementText().text(), signing_key(new_key()),
                                    chain_material({chain.leaf.der(), chain.intermediate.der()}));
  chain.expect_untrusted(rsa, chain.policy(), "this is a key of the kind RSA; expected is");
}

TEST(Certificate, RefusesWhatIsNoChain) {
  const Chain chain;
  const auto expect_refused = [&](const std::string& material, std::string_view why) {
    const std::string bundle =
        bundle_of(StatementText().text(), signing_key(chain.leaf.key), material);
    const std::string message = refusal(ErrorKind::InvalidFormat, bundle, chain.policy());
    EXPECT_TRUE(contains(message, why)) << message;
  };
  std::vector<std::byte> longer = chain.leaf.der();
  longer.push_back(std::byte{0});
  expect_refused(chain_material({longer}), "a certificate is not X.509 in DER");
  expect_refused(chain_material({bytes_of("text")}), "a certificate is not X.509 in DER");
  const std::string comment(70'000, 'x');
  CertificateText large = signer();
  large.extensions.emplace_back(NID_netscape_comment, comment.c_str());
  expect_refused(chain_material({issue(large).der()}), "in DER of at most 64 KiB");
  expect_refused(chain_material({}), "'x509CertificateChain' has no certificates");
  expect_refused(R"({"x509CertificateChain":{}})", "'x509CertificateChain' has no 'certificates'");
  expect_refused(R"({"x509CertificateChain":{"certificates":[{}]}})",
                 "a certificate has no 'rawBytes'");
  expect_refused(chain_material(std::vector(17, chain.leaf.der())), "more than 16 certificates");
}

TEST(Certificate, NoChangedByteChangesWhoSigned) {
  const Chain chain;
  const std::string bundle = chain.bundle();
  const Policy policy = chain.policy();
  const Manifest manifest = open(bundle, policy);
  std::string text = bundle;
  const std::size_t end = text.find("dsseEnvelope");
  for (std::size_t i = 0; i < end; i += 3) {
    text[i] = static_cast<char>(text[i] ^ 1);
    try {
      const Manifest other = open(text, policy);
      EXPECT_EQ(other.root, manifest.root);
      EXPECT_EQ(other.signer, manifest.signer);
    } catch (const Error& error) {
      EXPECT_TRUE(error.kind() == ErrorKind::InvalidFormat || error.kind() == ErrorKind::Crypto)
          << error.what();
    }
    text[i] = bundle[i];
  }
}

}  // namespace
}  // namespace tensorizer
