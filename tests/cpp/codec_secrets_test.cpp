// Keys in memory and from passphrases, MACs, and hexadecimal text.
#include <sodium.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>
#include <utility>

#include "codec/argon2.h"
#include "codec/hmac.h"
#include "codec/secret_bytes.h"
#include "codec/secretbox.h"
#include "raw_crypt.h"

namespace tensorizer {
namespace {

using namespace testing_support;

// ---- memory

TEST(SecretBytesTest, StartAsZerosOrAsACopy) {
  EXPECT_TRUE(SecretBytes().empty());
  EXPECT_TRUE(SecretBytes().bytes().empty());
  EXPECT_TRUE(SecretBytes(0).empty());
  const SecretBytes zeros(5);
  EXPECT_TRUE(same(zeros.bytes(), std::vector<std::byte>(5)));
  std::vector<std::byte> content = pattern(40);
  const SecretBytes copy{ConstBytes(content)};
  content[0] ^= std::byte{1};
  EXPECT_TRUE(same(copy.bytes(), pattern(40)));
  EXPECT_FALSE(copy.empty());
}

TEST(SecretBytesTest, WhatWasMovedFromIsEmpty) {
  SecretBytes first{ConstBytes(pattern(40))};
  const std::byte* const memory = first.bytes().data();
  SecretBytes second(std::move(first));
  EXPECT_TRUE(first.empty());  // NOLINT: the state after a move is under test
  EXPECT_TRUE(first.bytes().empty());
  EXPECT_EQ(second.bytes().data(), memory);
  SecretBytes third{ConstBytes(pattern(3))};
  third = std::move(second);
  EXPECT_TRUE(second.empty());  // NOLINT
  EXPECT_TRUE(same(third.bytes(), pattern(40)));
}

TEST(SecretBytesTest, ShorteningWipesTheRest) {
  SecretBytes secret{ConstBytes(pattern(40))};
  const Bytes all = secret.bytes();
  secret.shorten(41);
  EXPECT_EQ(secret.bytes().size(), 40U);
  secret.shorten(13);
  EXPECT_TRUE(same(secret.bytes(), ConstBytes(pattern(40)).first(13)));
  EXPECT_TRUE(same(all.subspan(13), std::vector<std::byte>(27)));
  secret.shorten(0);
  EXPECT_TRUE(secret.empty());
}

TEST(SecretBytesTest, WipeAndRandom) {
  std::vector<std::byte> bytes = pattern(40);
  wipe(Bytes(bytes).first(39));
  EXPECT_TRUE(same(ConstBytes(bytes).first(39), std::vector<std::byte>(39)));
  EXPECT_EQ(bytes[39], pattern(40)[39]);
  std::vector<std::byte> other(40);
  fill_random(bytes);
  fill_random(other);
  EXPECT_FALSE(same(bytes, other));
}

// ---- MACs

TEST(Macs, AreEqualInEveryBitOrNot) {
  for (const std::size_t size : {16, 32}) {
    const std::vector<std::byte> mac = pattern(size);
    std::vector<std::byte> other = mac;
    EXPECT_TRUE(is_equal_mac(mac, other));
    for (std::size_t bit = 0; bit < 8 * size; ++bit) {
      other[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      EXPECT_FALSE(is_equal_mac(mac, other)) << bit;
      other = mac;
    }
  }
}

TEST(Macs, OfAnyOtherLengthAreNeverEqual) {
  const std::vector<std::byte> bytes = pattern(64);
  for (const std::size_t size : {0, 1, 15, 17, 31, 33, 64}) {
    EXPECT_FALSE(is_equal_mac(ConstBytes(bytes).first(size), ConstBytes(bytes).first(size)));
  }
  EXPECT_FALSE(is_equal_mac(ConstBytes(bytes).first(16), ConstBytes(bytes).first(32)));
}

TEST(Macs, AreThoseOfLibsodium) {
  for (const std::size_t key_size : {0, 1, 32, 63, 64, 65, 200}) {
    for (const std::size_t size : {0, 1, 55, 56, 64, 1000}) {
      const std::vector<std::byte> key = pattern(key_size, 2);
      const std::vector<std::byte> message = pattern(size, 3);
      crypto_auth_hmacsha256_state state;
      Sha256Digest expected;
      crypto_auth_hmacsha256_init(&state, in(key), key.size());
      crypto_auth_hmacsha256_update(&state, in(message), message.size());
      crypto_auth_hmacsha256_final(&state, out(expected));
      EXPECT_EQ(hmac(key, message), expected) << key_size << " " << size;
    }
  }
}

TEST(Digest, OfOneMessage) {
  EXPECT_EQ(to_hex(sha256(as_bytes("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

// ---- text

TEST(Hex, GoesThereAndBack) {
  std::vector<std::byte> all(256);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::byte>(i);
  std::vector<std::byte> back(256);
  EXPECT_TRUE(from_hex(to_hex(all), back));
  EXPECT_TRUE(same(back, all));
  EXPECT_EQ(to_hex(ConstBytes(all).last(3)), "fdfeff");
  EXPECT_EQ(to_hex({}), "");
  EXPECT_TRUE(from_hex("", {}));
  EXPECT_TRUE(from_hex("aBCd", Bytes(back).first(2)));
  EXPECT_EQ(to_hex(ConstBytes(back).first(2)), "abcd");
}

TEST(Hex, IsTwoDigitsForEachByteAndNothingElse) {
  std::vector<std::byte> out(2);
  for (const std::string_view text : {"", "abc", "abcde", "abcdef", "abcg", "gbcd", "ab d", " abc",
                                      "+1ab", "ab-1", "0xab", "ab0x", "ab\0a", "äb"}) {
    EXPECT_FALSE(from_hex(text, out)) << text;
  }
  EXPECT_FALSE(from_hex(std::string_view("ab\0a", 4), out));
  EXPECT_FALSE(from_hex("ab", {}));
}

// ---- passphrases

TEST(DeriveKey, IsThatOfLibsodium) {
  const Argon2Cost least{crypto_pwhash_OPSLIMIT_MIN, crypto_pwhash_MEMLIMIT_MIN};
  for (const Argon2Cost& cost : {least, Argon2Cost{2, 20'000}, Argon2Cost{5, 1 << 20}}) {
    for (const std::string_view passphrase :
         {"", "x", "correct horse", "tab\tand \xf0\x9f\x90\xb4"}) {
      const KeyDerivation derivation = derivation_of(7, cost);
      Sha256Digest expected;
      ASSERT_EQ(crypto_pwhash(out(expected), expected.size(), passphrase.data(), passphrase.size(),
                              in(derivation.salt), cost.passes, cost.memory,
                              crypto_pwhash_ALG_ARGON2ID13),
                0);
      const SharedSecret key = derive_key(as_bytes(passphrase), derivation);
      EXPECT_TRUE(same(key->bytes(), expected));
    }
  }
}

// The expected key comes from the reference implementation of Argon2.
TEST(DeriveKey, IsThatOfOthers) {
  KeyDerivation derivation{{3, 1 << 20}, {}};
  for (std::size_t i = 0; i < kSaltSize; ++i) derivation.salt[i] = static_cast<std::byte>(i);
  EXPECT_EQ(to_hex(derive_key(as_bytes("correct horse battery staple"), derivation)->bytes()),
            "590d7ddd37a1ed86417a3614be47c9f782828a38902390018d39bb6556fee029");
}

TEST(DeriveKey, DependsOnAllOfIt) {
  const KeyDerivation derivation = derivation_of(7, {1, 8192});
  const auto key = [](std::string_view passphrase, const KeyDerivation& by) {
    return to_hex(derive_key(as_bytes(passphrase), by)->bytes());
  };
  const std::string one = key("a", derivation);
  EXPECT_EQ(one, key("a", derivation));
  EXPECT_NE(one, key("b", derivation));
  EXPECT_NE(one, key("a", derivation_of(8, {1, 8192})));
  EXPECT_NE(one, key("a", derivation_of(7, {2, 8192})));
  EXPECT_NE(one, key("a", derivation_of(7, {1, 9216})));
}

TEST(DeriveKey, RefusesWhatArgon2CannotDo) {
  for (const Argon2Cost& cost :
       {Argon2Cost{0, 8192}, Argon2Cost{1, 8191}, Argon2Cost{1, 0}, Argon2Cost{1ULL << 32, 8192},
        Argon2Cost{1, ~std::uint64_t{0}}, Argon2Cost{~std::uint64_t{0}, ~std::uint64_t{0}}}) {
    EXPECT_FALSE(is_possible(cost));
    const Error error = error_of([&] { derive_key(as_bytes("secret"), derivation_of(7, cost)); });
    EXPECT_EQ(error.kind(), ErrorKind::Crypto);
    EXPECT_TRUE(contains(error.what(), std::to_string(cost.passes) + " passes over " +
                                           std::to_string(cost.memory) + " bytes"));
    EXPECT_FALSE(contains(error.what(), "secret"));
  }
}

// Limits the process to 64 MiB of address space beyond what it has.
class LittleMemory {
 public:
  LittleMemory() {
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &before_);
    rlimit now = before_;
    now.rlim_cur = pages * static_cast<std::uint64_t>(getpagesize()) + (64 << 20);
    setrlimit(RLIMIT_AS, &now);
  }
  ~LittleMemory() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

TEST(DeriveKey, SaysWhenThereIsNotThatMuchMemory) {
  const KeyDerivation derivation = derivation_of(7, {1, 1 << 30});
  const LittleMemory little;
  const Error error = error_of([&] { derive_key(as_bytes("x"), derivation); });
  EXPECT_EQ(error.kind(), ErrorKind::OutOfMemory);
  EXPECT_TRUE(contains(error.what(), "1073741824 bytes of memory: there is not enough memory"))
      << error.what();
}

// A cost that takes many minutes.
constexpr Argon2Cost kEndless{4'000'000'000, 8 << 20};

TEST(Derivation, IsLeftBehindByWhoCancels) {
  Cancel cancel;
  std::thread canceller([&] { cancel.request(); });
  Derivation endless(as_bytes("x"), derivation_of(7, kEndless));
  EXPECT_EQ(kind_of([&] { endless.wait(cancel); }), ErrorKind::Cancelled);
  canceller.join();
  // Other derivations continue meanwhile.
  const KeyDerivation easy = derivation_of(7, {1, 8192});
  EXPECT_TRUE(
      same(derive_key(as_bytes("x"), easy)->bytes(), derive_key(as_bytes("x"), easy)->bytes()));
}

TEST(Derivation, WaitsWhereTooManyWereLeftBehind) {
  const auto leave = [](std::uint32_t salt) {
    Cancel cancel;
    cancel.request();
    Derivation endless(as_bytes("x"), derivation_of(salt, kEndless));
    EXPECT_EQ(kind_of([&] { endless.wait(cancel); }), ErrorKind::Cancelled);
  };
  // The test above may have left a running derivation behind already.
  for (std::uint32_t salt = 1; salt <= 2; ++salt) leave(salt);
  const KeyDerivation easy = derivation_of(7, {1, 8192});
  Cancel cancel;
  std::thread canceller([&] {
    std::this_thread::sleep_for(3 * kPollInterval);
    cancel.request();
  });
  EXPECT_EQ(kind_of([&] { Derivation(as_bytes("x"), easy).wait(cancel); }), ErrorKind::Cancelled);
  canceller.join();
  // A forked child has no derivations left behind.
  const pid_t child = fork();
  if (child == 0) _exit(derive_key(as_bytes("x"), easy)->bytes().size() == kKeySize ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(NamedCosts, AreThoseOfLibsodium) {
  EXPECT_EQ(named_cost("min"), (Argon2Cost{1, 8192}));
  EXPECT_EQ(named_cost("interactive"), (Argon2Cost{2, 64 << 20}));
  EXPECT_EQ(named_cost("moderate"), (Argon2Cost{3, 256 << 20}));
  EXPECT_EQ(named_cost("sensitive"), (Argon2Cost{4, 1 << 30}));
  for (const std::string_view name : {"", "Min", "min ", "none"}) EXPECT_FALSE(named_cost(name));
}

}  // namespace
}  // namespace tensorizer
