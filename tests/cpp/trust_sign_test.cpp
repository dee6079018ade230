// Bundles that are made open again, and are written as the specification has them.
#include "trust/sign.h"

#include <set>

#include "trust/statement.h"
#include "trust_support.h"

namespace tensorizer {
namespace {

using namespace testing_support;

struct Files {
  std::vector<std::byte> digests = pattern(3 * kSha256Size);
  ConstBytes of(std::size_t first, std::size_t count) const {
    return ConstBytes(digests).subspan(first * kSha256Size, count * kSha256Size);
  }
};

// Returns the statement in a bundle.
std::string payload_of(const std::string& bundle) {
  const std::string_view key = R"("payload":")";
  const std::size_t begin = bundle.find(key) + key.size();
  const auto payload =
      from_base64(std::string_view(bundle).substr(begin, bundle.find('"', begin) - begin));
  return std::string(as_text(payload.value()));
}

class SignTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Curves, SignTest, ::testing::Values("P-256", "P-384", "P-521"));

TEST_P(SignTest, FilesOpenAgain) {
  const PrivateKey key = signing_key(new_key(GetParam()));
  const Files made;
  const std::vector<FileToSign> files{
      {"b", 7, made.of(0, 1)}, {"a/\xc3\xa9\"\\", 0, made.of(1, 1)}, {"a.b", 5, made.of(2, 1)}};
  const std::vector<std::string> ignored{".git", "\"x\""};
  const std::string bundle = sign_bundle({"m \"1\"", files, 0, ignored, true}, key);
  const Manifest manifest = open(bundle, trusting(key.public_key()));
  EXPECT_EQ(manifest.model, "m \"1\"");
  EXPECT_EQ(manifest.ignored, ignored);
  EXPECT_TRUE(manifest.allow_symlinks);
  EXPECT_FALSE(manifest.in_shards());
  ASSERT_EQ(manifest.files.size(), 3U);
  for (const FileToSign& file : files) {
    const ManifestFile* const found = manifest.find(file.name);
    ASSERT_NE(found, nullptr) << file.name;
    EXPECT_TRUE(same(manifest.digests_of(*found), file.digests));
  }
}

TEST_P(SignTest, ShardsAndChainsOpenAgain) {
  const Issued root = issue(authority("root"));
  const Issued intermediate = issue(authority("intermediate"), &root);
  const Issued leaf = issue(signer(), &intermediate, new_key(GetParam()));
  const std::vector<Certificate> chain{leaf.certificate(), intermediate.certificate()};
  const Files made;
  const std::vector<FileToSign> files{
      {"b:0:4", 9, made.of(0, 3)}, {"empty", 0, {}}, {"a", 4, made.of(1, 1)}};
  const std::string bundle = sign_bundle({"m", files, 4, {}}, signing_key(leaf.key), chain);
  const Manifest manifest = open(bundle, trusting(root.pem(), {"signer@example.com"}));
  EXPECT_EQ(manifest.signer, chain[0].describe());
  EXPECT_EQ(manifest.shard_size, 4U);
  ASSERT_EQ(manifest.files.size(), 2U);
  EXPECT_EQ(manifest.find("b:0:4")->size, 9U);
  EXPECT_TRUE(same(manifest.digests_of(*manifest.find("b:0:4")), made.of(0, 3)));
  EXPECT_EQ(manifest.find("a")->size, 4U);
  EXPECT_TRUE(same(manifest.digests_of(*manifest.find("a")), made.of(1, 1)));
}

TEST(Sign, IsWrittenAsTheSpecificationHasIt) {
  const PrivateKey key = signing_key(new_key());
  const std::vector<std::byte> zeros(kSha256Size);
  const std::vector<std::byte> ones(kSha256Size, std::byte{0x11});
  const std::vector<FileToSign> files{{"b\"\\", 1, zeros}, {"a", 1, ones}};
  const std::string bundle = sign_bundle({"m\n\x01", files, 0, {}}, key);
  Sha256 root;
  root.update(ones);
  root.update(zeros);
  EXPECT_EQ(payload_of(bundle),
            R"({"_type":"https://in-toto.io/Statement/v1","subject":[{"name":"m\n\u0001","digest":)"
            R"({"sha256":")" +
                to_hex(root.finish()) +
                R"("}}],"predicateType":"https://model_signing/signature/v1.0","predicate":)"
                R"({"resources":[{"name":"a","digest":")" +
                to_hex(ones) + R"(","algorithm":"sha256"},{"name":"b\"\\","digest":")" +
                to_hex(zeros) + R"(","algorithm":"sha256"}],"serialization":)" +
                R"({"method":"files","hash_type":"sha256","allow_symlinks":false}}})");
  EXPECT_TRUE(bundle.starts_with(
      R"({"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":)" +
      key_material(key.public_key()) + R"(,"dsseEnvelope":{"payload":")"));
  EXPECT_TRUE(contains(bundle, R"("payloadType":"application/vnd.in-toto+json","signatures":[{)"));
  EXPECT_TRUE(bundle.ends_with(R"(","keyid":""}]}})"));
}

TEST(Sign, ResourcesAreInTheOrderOfTheirNames) {
  const PrivateKey key = signing_key(new_key());
  const std::vector<std::byte> digests = pattern(11 * kSha256Size);
  const ConstBytes all(digests);
  const std::vector<FileToSign> shards{{"b", 11, all}, {"a", 1, all.first(kSha256Size)}};
  const std::vector<std::string> ignored{"x"};
  const std::string text = payload_of(sign_bundle({"m", shards, 1, ignored}, key));
  std::size_t last = 0;
  // As texts, 10 is before 2.
  for (const char* const name :
       {"\"a:0:1\"", "\"b:0:1\"", "\"b:10:11\"", "\"b:1:2\"", "\"b:9:10\""}) {
    const std::size_t at = text.find(name);
    ASSERT_NE(at, text.npos) << name;
    EXPECT_GT(at, last) << name;
    last = at;
  }
  EXPECT_TRUE(contains(text, R"("method":"shards","hash_type":"sha256","shard_size":1,)"
                             R"("allow_symlinks":false,"ignore_paths":["x"]})"));
  // Of code points, not of UTF-16.
  const ConstBytes one = all.first(kSha256Size);
  const std::vector<FileToSign> files{{"\xf0\x9f\x98\x80", 1, one}, {"\xef\xbf\xbd", 1, one}};
  const std::string order = payload_of(sign_bundle({"m", files, 0, {}}, key));
  EXPECT_LT(order.find("\xef\xbf\xbd"), order.find("\xf0\x9f\x98\x80"));
}

TEST(Sign, RefusesWhatCannotBeSigned) {
  const PrivateKey key = signing_key(new_key());
  const std::vector<std::byte> digests = pattern(2 * kSha256Size);
  const ConstBytes one = ConstBytes(digests).first(kSha256Size);
  const auto expect_refused = [&](const std::vector<FileToSign>& files, std::uint64_t shard_size,
                                  std::string_view why, std::string_view name = "m",
                                  const std::vector<std::string>& ignored = {}) {
    const Error error = error_of([&] { sign_bundle({name, files, shard_size, ignored}, key); });
    EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
    EXPECT_TRUE(error.message().starts_with("cannot sign: ")) << error.what();
    EXPECT_TRUE(contains(error.message(), why)) << error.what();
  };
  expect_refused({}, 0, "no files with data");
  expect_refused({{"a", 0, {}}}, 4, "no files with data");
  expect_refused({{"a", 1, one}, {"b", 1, one}, {"a", 1, one}}, 0, "the file 'a' twice");
  expect_refused({{"../a", 1, one}}, 0, "the name '../a' cannot be that of a file");
  expect_refused({{"a\n", 1, one}}, 0, "it has a control character");
  expect_refused({{"a\xff", 1, one}}, 0, "it is not UTF-8");
  expect_refused({{"a", 1, digests}}, 0, "the file 'a' of 1 bytes has 64 bytes of digests");
  expect_refused({{"a", 1, {}}}, 0, "has 0 bytes of digests");
  expect_refused({{"a", 5, one}}, 4, "the file 'a' of 5 bytes has 32 bytes of digests");
  expect_refused({{"a", 4, digests}}, 4, "has 64 bytes of digests");
  expect_refused({{"a", std::uint64_t{1} << 63, one}}, std::uint64_t{1} << 63, "bytes of digests");
  expect_refused({{"a", 1, one}}, 0, "the name '' of the model", "");
  expect_refused({{"a", 1, one}}, 0, "of the model is empty, or not UTF-8", "\xff");
  expect_refused({{"a", 1, one}}, 0, "the ignored path", "m", {"\xff"});
  expect_refused({{"a", 1, one}}, 0, "the ignored path '' is empty", "m", {""});
}

TEST(Sign, RefusesAChainThatVerifiersWould) {
  const Issued leaf = issue(signer());
  const std::vector<std::byte> digest = pattern(kSha256Size);
  const std::vector<FileToSign> files{{"a", 1, digest}};
  const auto message = [&](const SharedKey& key, const Issued& issued) {
    const std::vector<Certificate> chain{issued.certificate()};
    const Error error =
        error_of([&] { sign_bundle({"m", files, 0, {}}, signing_key(key), chain); });
    EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
    return std::string(error.message());
  };
  EXPECT_TRUE(contains(message(new_key(), leaf),
                       "'CN=signer,O=Example' (issued by "
                       "'CN=signer,O=Example') is of another key"));
  const Issued server = issue({"server", {{NID_ext_key_usage, "serverAuth"}}});
  EXPECT_TRUE(
      contains(message(server.key, server), "must not sign models: its extended key usage"));
  const Issued rsa = issue(signer(), nullptr, SharedKey(EVP_RSA_gen(2048), EVP_PKEY_free));
  EXPECT_TRUE(contains(message(new_key(), rsa), "cannot sign: this is a key of the kind RSA"));
}

TEST(Sign, WhatIsWrittenIsReadAsItWas) {
  Dice dice(7);
  const std::vector<std::string> parts{
      "a", "B", ":", "0", "\xc3\xa9", "\"", "\\", " ", "\xe2\x80\xa8", ".x", "/c", "{", "*"};
  for (int round = 0; round < 300; ++round) {
    Manifest manifest;
    manifest.model = "m";
    manifest.shard_size = dice.one_in(2) ? 1 + dice.below(5) : 0;
    std::set<std::string> names;
    for (std::uint64_t i = dice.below(6) + 1; i > 0; --i) {
      std::string name = "n";
      for (std::uint64_t length = dice.below(6); length > 0; --length) name += dice.pick(parts);
      names.insert(name);
    }
    for (const std::string& name : names) {
      const std::uint64_t size = manifest.in_shards() ? 1 + dice.below(20) : 0;
      const std::size_t count =
          manifest.in_shards() ? (size + manifest.shard_size - 1) / manifest.shard_size : 1;
      manifest.files.push_back({name, size, manifest.digests.size() / kSha256Size, count});
      const std::vector<std::byte> digests =
          pattern(count * kSha256Size, static_cast<std::uint32_t>(round));
      manifest.digests.insert(manifest.digests.end(), digests.begin(), digests.end());
    }
    const std::string text = write_statement(manifest);
    const Manifest read = open_payload(copy_of(text), "", {}, "'b'");
    ASSERT_EQ(read.files.size(), manifest.files.size()) << text;
    EXPECT_TRUE(same(read.digests, manifest.digests)) << text;
    EXPECT_EQ(write_statement(read), text);
    for (std::size_t i = 0; i < read.files.size(); ++i) {
      EXPECT_EQ(read.files[i].name, manifest.files[i].name);
      EXPECT_EQ(read.files[i].size, manifest.files[i].size);
      EXPECT_EQ(read.files[i].count, manifest.files[i].count);
    }
  }
}

}  // namespace
}  // namespace tensorizer
