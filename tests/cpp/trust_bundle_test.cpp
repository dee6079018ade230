// Who signed a bundle: keys, envelopes, and that any other is refused.
#include "memory_watch.h"
#include "trust_support.h"

namespace tensorizer {
namespace {

using namespace testing_support;

struct Made {
  SharedKey key = new_key();
  PrivateKey signer = signing_key(key);
  std::string payload = StatementText().text();
  std::string text = bundle_of(payload, signer, key_material(signer.public_key()));
  Policy policy = trusting(signer.public_key());

  void expect_refused(const std::string& bundle, std::string_view why) const {
    const std::string message = refusal(ErrorKind::InvalidFormat, bundle, policy);
    EXPECT_TRUE(contains(message, why)) << message;
  }
  void expect_untrusted(const std::string& bundle, std::string_view why) const {
    const std::string message = refusal(ErrorKind::Crypto, bundle, policy);
    EXPECT_TRUE(contains(message, why)) << message;
  }
};

class BundleOfCurveTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Curves, BundleOfCurveTest, ::testing::Values("P-256", "P-384", "P-521"));

TEST_P(BundleOfCurveTest, OpensWithTheKeyThatSigned) {
  const Made made{new_key(GetParam())};
  const Manifest manifest = open(made.text, made.policy);
  EXPECT_EQ(manifest.signer, "the key " + made.signer.public_key().hint());
  EXPECT_EQ(manifest.files.size(), 2U);
  EXPECT_EQ(to_hex(manifest.root), StatementText().root());
  const PublicKey other = PublicKey::from_pem(public_pem(new_key(GetParam())), "'k'");
  const std::string message = refusal(ErrorKind::Crypto, made.text, trusting(other));
  EXPECT_EQ(message, "'b': it says that it is signed by the key '" +
                         made.signer.public_key().hint() + "', expected is the key " +
                         other.hint());
}

TEST(Bundle, AnyKeyOfThePolicyMaySign) {
  const Made made;
  Policy policy = trusting(PublicKey::from_pem(public_pem(new_key("P-521")), "'k'"));
  policy.keys.push_back(made.signer.public_key());
  EXPECT_EQ(open(made.text, policy).signer, "the key " + made.signer.public_key().hint());
  // What a bundle says of its key proves nothing, and is needed for nothing.
  const std::string hint = made.signer.public_key().hint();
  for (const std::string& other : {policy.keys[0].hint(), std::string("x"), std::string()}) {
    EXPECT_EQ(open(with(made.text, hint, other), policy).signer, "the key " + hint);
  }
  policy.keys.pop_back();
  refusal(ErrorKind::Crypto, with(made.text, hint, policy.keys[0].hint()), policy);
}

TEST(Bundle, OldBundlesHaveTheKeyItself) {
  const Made made;
  const auto old = [&](const PublicKey& named) {
    return bundle_of(made.payload, made.signer,
                     R"({"publicKey":{"rawBytes":")" + to_base64(as_bytes(named.pem())) +
                         R"(","keyDetails":"PKIX_ECDSA_P256_SHA_256"},"tlogEntries":[]})");
  };
  const PublicKey& signer = made.signer.public_key();
  EXPECT_EQ(open(old(signer), made.policy).files.size(), 2U);
  const PublicKey other = PublicKey::from_pem(public_pem(new_key()), "'k'");
  const std::string message = refusal(ErrorKind::Crypto, old(signer), trusting(other));
  EXPECT_TRUE(contains(
      message, "signed by the key '" + signer.hint() + "', expected is the key " + other.hint()));
  made.expect_refused(with(made.text, "hint", "other"), "neither 'hint' nor 'rawBytes'");
}

TEST(Bundle, IdsOfKeysAreAbsentEmptyOrNull) {
  const Made made;
  for (const char* const id : {"", R"(,"keyid":null)", R"(,"keyid":"any")"}) {
    EXPECT_EQ(open(with(made.text, R"(,"keyid":"")", id), made.policy).files.size(), 2U);
  }
  made.expect_refused(with(made.text, R"("keyid":"")", R"("keyid":1)"), "'keyid' is not a string");
}

TEST(Bundle, MediaTypesAreThoseOfSigstore) {
  const Made made;
  const std::string type = "application/vnd.dev.sigstore.bundle.v0.3+json";
  for (const char* const version : {"0.1", "0.2", "0.3"}) {
    const std::string other = "application/vnd.dev.sigstore.bundle+json;version=";
    EXPECT_EQ(open(with(made.text, type, other + version), made.policy).files.size(), 2U);
  }
  for (const char* const bad :
       {"", "application/json", "application/vnd.dev.sigstore.bundle.v0.4+json",
        "application/vnd.dev.sigstore.bundle+json;version=0.4",
        "application/vnd.dev.sigstore.bundle.v0.2+json"}) {
    made.expect_refused(with(made.text, type, bad), "its media type is");
  }
}

TEST(Bundle, RefusesOtherPayloads) {
  const Made made;
  made.expect_refused(with(made.text, "application/vnd.in-toto+json", "application/json"),
                      "its payload is 'application/json', expected is");
  const std::string signed_number =
      bundle_of("1", made.signer, key_material(made.signer.public_key()));
  made.expect_refused(signed_number, "what was signed is not a list of a model's files");
}

TEST(Bundle, TheSignatureIsCheckedBeforeThePayloadIsRead) {
  const Made made;
  const std::string bundle = bundle_of("{", made.signer, key_material(made.signer.public_key()));
  made.expect_refused(bundle, "what was signed");
  const std::string other = bundle_of("[", made.signer, key_material(made.signer.public_key()));
  made.expect_untrusted(with(bundle, to_base64(as_bytes("{")), to_base64(as_bytes("["))),
                        "its signature by the trusted key");
}

TEST(Bundle, RefusesSignaturesOfAnotherNumber) {
  const Made made;
  const std::size_t begin = made.text.find(R"({"sig")");
  const std::string one = made.text.substr(begin, made.text.find('}', begin) + 1 - begin);
  made.expect_refused(with(made.text, one, one + "," + one),
                      "it has 2 signatures, expected is one");
  made.expect_refused(with(made.text, one, ""), "it has 0 signatures");
  made.expect_refused(with(made.text, R"("sig")", R"("keyid2")"), "has the key 'keyid2'");
  made.expect_refused(with(made.text, one, "{}"), "a signature has no 'sig'");
}

TEST(Bundle, RefusesBase64OfAnotherForm) {
  const Made made;
  const std::string payload = to_base64(as_bytes(made.payload));
  for (const std::string& bad : {std::string(), payload.substr(1), payload + "=", payload + "\\n",
                                 '-' + payload.substr(1), payload + "===="}) {
    made.expect_refused(with(made.text, payload, bad), "'payload' is not base64, or is empty");
  }
}

TEST(Bundle, RefusesMissingAndUnknownMembers) {
  const Made made;
  for (const char* const key : {"mediaType", "verificationMaterial", "dsseEnvelope", "payload",
                                "payloadType", "signatures", "sig"}) {
    made.expect_refused(with(made.text, '"' + std::string(key) + '"', R"("x")"),
                        "has the key 'x', which the format does not have");
  }
  made.expect_refused("{}", "it has no 'mediaType'");
  const std::string head = made.text.substr(0, made.text.find(",\"verificationMaterial"));
  made.expect_refused(head + "}", "it has no 'verificationMaterial'");
  const std::string more = made.text.substr(0, made.text.find(",\"dsseEnvelope"));
  made.expect_refused(more + "}", "it has no 'dsseEnvelope'");
  made.expect_refused(more + R"(,"dsseEnvelope":{}})", "'dsseEnvelope' has no 'payload'");
  made.expect_refused(more + R"(,"dsseEnvelope":{"payload":"AAAA"}})", "has no 'payloadType'");
  made.expect_refused(
      more + R"(,"dsseEnvelope":{"payload":"AAAA","payloadType":"application/vnd.in-toto+json"}})",
      "has no 'signatures'");
}

TEST(Bundle, RefusesMembersTwice) {
  const Made made;
  const std::string sig = R"("keyid":"")";
  made.expect_refused(with(made.text, sig, sig + R"(,"\u006beyid":"")"),
                      "has the key 'keyid' twice");
  const std::string hint = R"("hint":")" + made.signer.public_key().hint() + '"';
  made.expect_refused(with(made.text, hint, hint + "," + hint), "has the key 'hint' twice");
  const std::string type = R"("payloadType":"application/vnd.in-toto+json")";
  made.expect_refused(with(made.text, type, type + "," + type), "has the key 'payloadType' twice");
}

TEST(Bundle, RefusesMaterialThatIsNotOneOfThree) {
  const Made made;
  const std::string material = key_material(made.signer.public_key());
  made.expect_refused(with(made.text, material, "{}"), "and has 0");
  const Issued issued = issue(signer());
  std::string both = material;
  both.insert(both.size() - 1, "," + chain_material({issued.der()}).substr(1));
  both.pop_back();
  made.expect_refused(with(made.text, material, both), "and has 2");
}

TEST(Bundle, SignaturesOfSigstoreAreForPython) {
  const Made made;
  const std::string material = key_material(made.signer.public_key());
  const std::string certificate =
      R"({"certificate":{"rawBytes":")" + to_base64(issue(signer()).der()) + R"("},"tlogEntries":)";
  made.expect_untrusted(with(made.text, material, certificate + R"([{"logIndex":"1"}]})"),
                        "'b': it is signed with Sigstore, which only Python can check");
  made.expect_refused(with(made.text, material, certificate + "[]}"), "without 'tlogEntries'");
  made.expect_refused(with(made.text, material, certificate + "[1]}"), "is not a JSON object");
}

TEST(Bundle, SignaturesOfSigstoreThatTheHostHasChecked) {
  Made made;
  const std::string material = key_material(made.signer.public_key());
  const std::string text =
      with(made.text, material,
           R"({"certificate":{"rawBytes":")" + to_base64(issue(signer()).der()) +
               R"("},"tlogEntries":[{"logIndex":"1"}]})");
  const std::string begin = R"("payload":")";
  const std::size_t at = text.find(begin) + begin.size();
  const auto payload = from_base64(text.substr(at, text.find('"', at) - at));
  ASSERT_TRUE(payload);
  Policy checked;
  checked.checked = CheckedBundle{"somebody", sha256(*payload)};
  EXPECT_EQ(open(text, checked).signer, "somebody");
  EXPECT_TRUE(contains(refusal(ErrorKind::Crypto, made.text, checked),
                       "expected is the bundle of Sigstore by somebody"));
  checked.checked->payload = sha256({});
  EXPECT_TRUE(contains(refusal(ErrorKind::Crypto, text, checked),
                       "it is another one than the bundle of somebody that was checked"));
}

TEST(Bundle, OnlySmallOnesOfSigstoreAreForVerifiersOfIt) {
  const Made made;
  const std::string material = key_material(made.signer.public_key());
  const std::string certificate = to_base64(issue(signer()).der());
  const auto of_sigstore = [&](const std::string& entries) {
    return with(made.text, material,
                R"({"certificate":{"rawBytes":")" + certificate + R"("},"tlogEntries":[{)" +
                    entries + "}]}");
  };
  const auto refused = [](const std::string& bundle) {
    return std::string(error_of([&] { check_sigstore_bundle(copy_of(bundle), "'b'"); }).message());
  };
  const std::string payload = made.text.substr(made.text.find(R"("payload":")") + 11, 20);
  const std::string large = std::string(1 << 20, 'A') + payload;
  check_sigstore_bundle(copy_of(of_sigstore("")), "'b'");
  check_sigstore_bundle(copy_of(with(of_sigstore(""), payload, large)), "'b'");
  EXPECT_EQ(refused(of_sigstore(R"("x":")" + std::string(64 << 10, 'x') + '"')),
            "'b': it has more than 65536 bytes beside its payload");
  std::string entries;
  for (int i = 0; i < 16; ++i) entries += "},{";
  EXPECT_TRUE(contains(refused(of_sigstore(entries)), "it has more than 16 'tlogEntries'"));
  EXPECT_EQ(refused(made.text),
            "'b': it is signed by a key, and not with Sigstore: use trust.add()");
  EXPECT_TRUE(contains(refused("{}"), "it has no 'mediaType'"));
}

TEST(Bundle, RefusesAKeyWhereCertificatesAreTrusted) {
  const Made made;
  const Issued root = issue(authority("root"));
  const std::string message =
      refusal(ErrorKind::Crypto, made.text, trusting(root.pem(), {"signer@example.com"}));
  EXPECT_TRUE(contains(message, "signed by the key '" + made.signer.public_key().hint() +
                                    "', expected is 'signer@example.com' with a certificate of "
                                    "'CN=root,O=Example'"))
      << message;
}

TEST(Bundle, RefusesAnotherSubject) {
  Made made;
  made.policy.subject = sha256({});
  EXPECT_TRUE(contains(
      refusal(ErrorKind::HashMismatch, made.text, made.policy),
      "with the root digest " + StatementText().root() + ", expected is " + to_hex(sha256({}))));
}

TEST(Bundle, RefusesWhatIsTooLarge) {
  const Made made;
  // Only its size is looked at.
  std::vector<std::byte> large(kMostBundleBytes + 1);
  const MemoryWatch watch;
  const Error error = error_of([&] { open_bundle(std::move(large), made.policy, "'b'"); });
  EXPECT_TRUE(contains(error.message(), "has at most 256 MiB, and this has 268435457 bytes"));
  EXPECT_LT(watch.peak(), 64U << 10);
}

TEST(Bundle, RefusesMoreValuesThanABundleHas) {
  const Made made;
  const auto with_more = [&](const std::string& more) {
    return with(made.text, R"({"publicKey")", R"({"x":)" + more + R"(,"publicKey")");
  };
  const auto many = [](std::string_view text) {
    std::string all;
    while (all.size() < (8 << 20)) all += text;
    return all;
  };
  for (const std::string& more : {'[' + many("0,") + "0]", '{' + many(R"("":0,)") + "}",
                                  many("[") + many("]"), many(" ") + '0', many("\"\""), many("0 "),
                                  R"([\")" + many("0,") + "]", R"([\\\")" + many("0,") + "\"]"}) {
    std::vector<std::byte> bundle = copy_of(with_more(more));
    const std::size_t size = bundle.size();
    const MemoryWatch watch;
    const Error error = error_of([&] { open_bundle(std::move(bundle), made.policy, "'b'"); });
    EXPECT_TRUE(contains(error.message(), "more than 1048576 bytes outside of strings"))
        << error.what();
    EXPECT_LT(watch.peak(), size + (64 << 10));
  }
  for (const std::string& text : {many("0,"), many(R"(\")"), many(R"(\\)")}) {
    EXPECT_EQ(open(with_more('"' + text + '"'), made.policy).files.size(), 2U);
  }
}

bool is_same(const Manifest& a, const Manifest& b) {
  return a.root == b.root && a.digests == b.digests && a.files.size() == b.files.size() &&
         std::equal(a.files.begin(), a.files.end(), b.files.begin(),
                    [](const auto& x, const auto& y) { return x.name == y.name; }) &&
         a.signer == b.signer && a.ignored == b.ignored;
}

// Returns whether a bundle is refused, or says what another one does.
bool is_harmless(const std::string& bundle, const Policy& policy, const Manifest& manifest) {
  try {
    return is_same(open(bundle, policy), manifest);
  } catch (const Error& error) {
    return error.kind() == ErrorKind::InvalidFormat || error.kind() == ErrorKind::Crypto;
  }
}

TEST(Bundle, NoChangedByteChangesTheManifest) {
  const Made made;
  const Manifest manifest = open(made.text, made.policy);
  std::string text = made.text;
  for (char& c : text) {
    for (const int bits : {0x01, 0x20, 0x80}) {
      c = static_cast<char>(c ^ bits);
      EXPECT_TRUE(is_harmless(text, made.policy, manifest)) << text;
      c = static_cast<char>(c ^ bits);
    }
  }
}

TEST(Bundle, CutsAreRefused) {
  const Made made;
  for (std::size_t size = 0; size < made.text.size(); ++size) {
    refusal(ErrorKind::InvalidFormat, made.text.substr(0, size), made.policy);
  }
}

TEST(Policy, RefusesWhatTrustsNobodyOrAnybody) {
  const std::string label = "the policy 'release'";
  const std::vector<Pem> keys{{"'key'", public_pem(new_key())}};
  const std::vector<Pem> roots{{"'root'", issue(authority("root")).pem()}};
  const std::vector<std::string> identities{"signer@example.com"};
  const auto expect_refused = [](const auto& action, std::string_view why) {
    const Error error = error_of(action);
    EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
    EXPECT_TRUE(contains(error.message(), why)) << error.what();
  };
  expect_refused([&] { make_policy(label, {}, {}, {}); }, "'release': nobody is trusted to sign");
  expect_refused([&] { make_policy(label, {}, roots, {}); }, "'release': a root certificate needs");
  expect_refused([&] { make_policy(label, keys, roots, {}); }, "anybody to whom this root gave");
  expect_refused([&] { make_policy(label, keys, {}, identities); },
                 "'release': an identity needs a root");
  const std::vector<std::string> empty{""};
  expect_refused([&] { make_policy(label, {}, roots, empty); },
                 "'release': an identity of a signer is empty");
  const std::vector<std::string> control{"a\nb"};
  expect_refused([&] { make_policy(label, {}, roots, control); },
                 "'release': the identity 'a\\x0ab' of a");
  expect_refused([&] { make_policy(label, {}, keys, identities); },
                 "'key': there is no certificate");
  expect_refused([&] { make_policy(label, roots, {}, {}); }, "'root': this is a certificate");
  const std::vector<Pem> damaged{
      {"'root'", roots[0].text + with(roots[0].text, "-----END", "-----")}};
  expect_refused([&] { make_policy(label, {}, damaged, identities); },
                 "'root': certificate 2 is damaged");
  const std::vector<Pem> two{{"'roots'", roots[0].text + issue(authority("other")).pem()}};
  EXPECT_EQ(make_policy(label, keys, two, identities).roots.size(), 2U);
}

}  // namespace
}  // namespace tensorizer
