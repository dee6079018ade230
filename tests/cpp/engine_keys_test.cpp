// The keys of one file: each is derived once, with limits on its cost and on the number of keys.
#include "engine/digest/file_keys.h"

#include <thread>

#include "encrypted_file.h"

namespace tensorizer {
namespace {

using namespace testing_support;

FileKeys by_passphrase(Argon2Cost most = kEasy) {
  return FileKeys(make_passphrase(as_bytes("open sesame")), most, "'f'");
}

SharedSecret key_for(FileKeys& keys, const std::optional<KeyDerivation>& derivation) {
  Cancel cancel;
  return keys.key_for(derivation, cancel);
}

std::string refusal(FileKeys& keys, const std::optional<KeyDerivation>& derivation) {
  const Error error = error_of([&] { key_for(keys, derivation); });
  EXPECT_EQ(error.kind(), ErrorKind::Crypto);
  EXPECT_TRUE(contains(error.what(), "'f': "));
  EXPECT_FALSE(contains(error.what(), "sesame"));
  return error.what();
}

TEST(FileKeysTest, AKeyIsTakenAsItIs) {
  const KeySource source = key_of();
  FileKeys keys = keys_of(source);
  EXPECT_EQ(key_for(keys, {}), source.secret);
  // A caller with the derived key need not derive it, whatever that would cost.
  EXPECT_EQ(key_for(keys, derivation_of(1, {1000, std::uint64_t{1} << 40})), source.secret);
}

TEST(FileKeysTest, APassphraseIsDerivedOnce) {
  FileKeys keys = by_passphrase();
  const SharedSecret first = key_for(keys, derivation_of(1));
  EXPECT_TRUE(same(first->bytes(), derive_key(as_bytes("open sesame"), derivation_of(1))->bytes()));
  const SharedSecret second = key_for(keys, derivation_of(2));
  EXPECT_FALSE(same(first->bytes(), second->bytes()));
  EXPECT_EQ(key_for(keys, derivation_of(1)), first);
  EXPECT_EQ(key_for(keys, derivation_of(2)), second);
}

TEST(FileKeysTest, DeriveForAllWhoAskAtOnce) {
  FileKeys keys = by_passphrase();
  std::vector<SharedSecret> found(4);
  std::vector<std::thread> threads;
  for (SharedSecret& key : found) {
    threads.emplace_back([&keys, &key] { key = key_for(keys, derivation_of(1)); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const SharedSecret& key : found) EXPECT_EQ(key, found[0]);
}

TEST(FileKeysTest, NoMoreThanFourAreDerived) {
  FileKeys keys = by_passphrase();
  for (std::uint32_t salt = 1; salt <= 4; ++salt) key_for(keys, derivation_of(salt));
  EXPECT_TRUE(contains(refusal(keys, derivation_of(5)), "more than 4 keys"));
  key_for(keys, derivation_of(4));
  key_for(keys, derivation_of(1));
}

TEST(FileKeysTest, NothingIsDerivedThatIsTooHard) {
  FileKeys keys = by_passphrase({2, 16384});
  key_for(keys, derivation_of(1, {2, 16384}));
  for (const Argon2Cost& cost : {Argon2Cost{3, 16384}, Argon2Cost{2, 16385}, Argon2Cost{3, 8192},
                                 Argon2Cost{~std::uint64_t{0}, ~std::uint64_t{0}}}) {
    const std::string message = refusal(keys, derivation_of(1, cost));
    EXPECT_TRUE(contains(message, std::to_string(cost.passes) + " passes over " +
                                      std::to_string(cost.memory) + " bytes"));
    EXPECT_TRUE(contains(message, "'kdf_limit' allows 2,16384")) << message;
  }
  // A cost that Argon2 does not allow is refused as well.
  refusal(keys, derivation_of(1, {0, 16384}));
  refusal(keys, derivation_of(1, {1, 0}));
}

TEST(FileKeysTest, APassphraseOpensNothingThatHasAKey) {
  FileKeys keys = by_passphrase();
  EXPECT_TRUE(contains(refusal(keys, {}), "with a key, and not with a passphrase"));
}

TEST(FileKeysTest, AreAskedBeforeAnythingIsDerivedForAFileThatAsksTooMuch) {
  const std::vector<std::byte> file = saved_as(
      std::vector<Sample>{sample("t", 5)}, encrypted("open sesame", derivation_of(1, {2, 8192})));
  FileKeys keys = by_passphrase({1, 8192});
  EXPECT_TRUE(contains(message_of([&] { read_with(file, &keys); }), "'kdf_limit'"));
}

}  // namespace
}  // namespace tensorizer
