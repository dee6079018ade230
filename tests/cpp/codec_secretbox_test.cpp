// Encrypted chunks, compared with libsodium's own crypto_secretbox_detached.
#include "codec/secretbox.h"

#include <sodium.h>

#include "codec/hmac.h"
#include "codec/secret_bytes.h"
#include "raw_crypt.h"

namespace tensorizer {
namespace {

using namespace testing_support;

constexpr std::size_t kPiece = 16 << 10;  // what encrypt_chunk() processes at a time
constexpr std::size_t kTwoMiB = 2 << 20;

struct Sealed {
  std::vector<std::byte> bytes;
  Mac mac{};
};

Sealed seal_by_libsodium(ConstBytes key, const Nonce& nonce, ConstBytes plain) {
  Sealed sealed{std::vector<std::byte>(plain.size()), {}};
  EXPECT_EQ(crypto_secretbox_detached(out(sealed.bytes), out(sealed.mac), in(plain), plain.size(),
                                      in(nonce), in(key)),
            0);
  return sealed;
}

Nonce nonce_from(ConstBytes bytes) {
  Nonce nonce{};
  EXPECT_EQ(bytes.size(), nonce.size());
  std::copy(bytes.begin(), bytes.end(), nonce.begin());
  return nonce;
}

std::vector<std::byte> from_text(std::string_view hex) {
  std::vector<std::byte> bytes(hex.size() / 2);
  EXPECT_TRUE(from_hex(hex, bytes));
  return bytes;
}

class SecretboxTest : public testing::Test {
 protected:
  // Expects encrypt_chunk(), in place and not, and decrypt_chunk() to agree with libsodium.
  void expect_same(std::size_t size) {
    const std::vector<std::byte> plain = pattern(size, static_cast<std::uint32_t>(size) + 3);
    const Sealed expected = seal_by_libsodium(key_, nonce_, plain);

    std::vector<std::byte> elsewhere(size, std::byte{0x77});
    EXPECT_EQ(encrypt_chunk(key_, nonce_, plain, elsewhere), expected.mac) << size;
    EXPECT_TRUE(same(elsewhere, expected.bytes)) << size;

    std::vector<std::byte> bytes = plain;
    EXPECT_EQ(encrypt_chunk(key_, nonce_, bytes, bytes), expected.mac) << size;
    EXPECT_TRUE(same(bytes, expected.bytes)) << size;

    std::vector<std::byte> opened(size);
    EXPECT_EQ(crypto_secretbox_open_detached(out(opened), in(bytes), in(expected.mac), size,
                                             in(nonce_), in(key_)),
              0);
    EXPECT_TRUE(same(opened, plain)) << size;

    EXPECT_TRUE(decrypt_chunk(key_, nonce_, expected.mac, bytes)) << size;
    EXPECT_TRUE(same(bytes, plain)) << size;
  }

  const std::vector<std::byte> key_ = pattern(kKeySize, 11);
  const Nonce nonce_ = nonce_of(12);
};

TEST_F(SecretboxTest, ShortChunksAreThoseOfLibsodium) {
  for (std::size_t size = 0; size <= 200; ++size) expect_same(size);
}

TEST_F(SecretboxTest, ChunksAroundEveryBoundaryAreThoseOfLibsodium) {
  for (const std::size_t boundary : {kPiece, kPiece + 32, 2 * kPiece + 32, std::size_t{65536}}) {
    for (const int more : {-33, -32, -1, 0, 1, 31, 32, 33, 63, 64, 65}) {
      expect_same(boundary + static_cast<std::size_t>(more));
    }
  }
  for (const std::size_t size : {kTwoMiB - 1, kTwoMiB, kTwoMiB + 1, kTwoMiB + 64}) {
    expect_same(size);
  }
}

// The example that has come with NaCl since its first release.
TEST_F(SecretboxTest, ExampleOfNaCl) {
  const auto key = from_text("1b27556473e985d462cd51197a9a46c76009549eac6474f206c4ee0844f68389");
  const Nonce nonce = nonce_from(from_text("69696ee955b62b73cd62bda875fc73d68219e0036b7a0b37"));
  auto bytes = from_text(
      "be075fc53c81f2d5cf141316ebeb0c7b5228c52a4c62cbd44b66849b64244ffce5ecbaaf33bd751a1ac728d45e6c"
      "61296cdc3c01233561f41db66cce314adb310e3be8250c46f06dceea3a7fa1348057e2f6556ad6b1318a024a838f"
      "21af1fde048977eb48f59ffd4924ca1c60902e52f0a089bc76897040e082f937763848645e0705");
  EXPECT_EQ(to_hex(encrypt_chunk(key, nonce, bytes, bytes)), "f3ffc7703f9400e52a7dfb4b3d3305d9");
  EXPECT_EQ(
      to_hex(bytes),
      "8e993b9f48681273c29650ba32fc76ce48332ea7164d96a4476fb8c531a1186ac0dfc17c98dce87b4da7f011ec48"
      "c97271d2c20f9b928fe2270d6fb863d51738b48eeee314a7cc8ab932164548e526ae90224368517acfeabd6bb373"
      "2bc0e9da99832b61ca01b6de56244a9e88d5f9b37973f622a43d14a6599b1f654cb45a74e355a5");
}

// Flips each bit of `secret` (all of them, or every `step`th) and expects a refusal that leaves the
// bytes as they are.
template <typename Open>
void expect_each_bit_matters(Bytes secret, std::size_t step, Open&& opens) {
  for (std::size_t bit = 0; bit < 8 * secret.size(); bit += step) {
    const auto flip = static_cast<std::byte>(1 << (bit % 8));
    secret[bit / 8] ^= flip;
    EXPECT_FALSE(opens()) << "bit " << bit;
    secret[bit / 8] ^= flip;
  }
  EXPECT_TRUE(opens());
}

TEST_F(SecretboxTest, OneWrongBitIsRefusedAndLeavesTheBytesAlone) {
  for (const std::size_t size : {0, 1, 31, 32, 33, 100, 20'000}) {
    Sealed sealed = seal_by_libsodium(key_, nonce_, pattern(size, 13));
    std::vector<std::byte> key = key_;
    Nonce nonce = nonce_;
    const auto opens = [&] {
      std::vector<std::byte> bytes = sealed.bytes;
      const bool opened = decrypt_chunk(key, nonce, sealed.mac, bytes);
      EXPECT_EQ(same(bytes, sealed.bytes), !opened || size == 0);
      return opened;
    };
    expect_each_bit_matters(sealed.mac, 1, opens);
    expect_each_bit_matters(nonce, 1, opens);
    expect_each_bit_matters(key, 1, opens);
    expect_each_bit_matters(sealed.bytes, size > 1000 ? 997 : 1, opens);
    // A MAC of another length is refused.
    std::vector<std::byte> bytes = sealed.bytes;
    EXPECT_FALSE(decrypt_chunk(key, nonce, ConstBytes(sealed.mac).first(15), bytes));
    EXPECT_FALSE(decrypt_chunk(key, nonce, {}, bytes));
    EXPECT_TRUE(same(bytes, sealed.bytes));
  }
}

TEST_F(SecretboxTest, ABytePutInOrTakenAwayIsRefused) {
  Sealed sealed = seal_by_libsodium(key_, nonce_, pattern(64, 14));
  std::vector<std::byte> longer = sealed.bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decrypt_chunk(key_, nonce_, sealed.mac, longer));
  EXPECT_FALSE(decrypt_chunk(key_, nonce_, sealed.mac, Bytes(sealed.bytes).first(63)));
  EXPECT_TRUE(decrypt_chunk(key_, nonce_, sealed.mac, sealed.bytes));
}

// ---- nonces

TEST(Nonces, CountUpAsLibsodiumDoes) {
  Nonce carry{};
  std::fill_n(carry.begin(), 9, std::byte{0xff});
  Nonce all_ones;
  all_ones.fill(std::byte{0xff});
  for (const Nonce& first : {Nonce{}, carry, all_ones, nonce_of(15)}) {
    Nonce expected = first;
    for (std::uint64_t count = 0; count < 600; ++count) {
      ASSERT_EQ(nonce_after(first, count), expected) << count;
      sodium_increment(out(expected), expected.size());
    }
    for (const std::uint64_t count :
         {std::uint64_t{0xff00}, std::uint64_t{1} << 32, ~std::uint64_t{0}}) {
      Nonce more{};
      std::memcpy(more.data(), &count, sizeof(count));
      expected = first;
      sodium_add(out(expected), in(more), expected.size());
      EXPECT_EQ(nonce_after(first, count), expected) << count;
    }
  }
}

TEST(Nonces, AreNeverTheSame) {
  EXPECT_NE(random_nonce(), random_nonce());
  EXPECT_NE(random_nonce(), Nonce{});
}

}  // namespace
}  // namespace tensorizer
