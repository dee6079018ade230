// The arithmetic of csrc/cuda on the CPU, against libcrypto, libdeflate and libsodium.
//
// A message is cut into pieces as threads of a device would take them.
#include <gtest/gtest.h>
#include <libdeflate.h>
#include <openssl/evp.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "cuda/crc32.h"
#include "cuda/poly1305.h"
#include "cuda/salsa20.h"
#include "cuda/sha256.h"

namespace tensorizer::device {
namespace {

constexpr int kCases = 10'000;
// All sizes up to several blocks of every algorithm.
constexpr std::size_t kSmall = 300;

using Message = std::span<const std::uint8_t>;

std::vector<std::uint8_t> random_bytes(std::size_t size, std::mt19937_64& random) {
  std::vector<std::uint8_t> bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

std::size_t random_below(std::mt19937_64& random, std::size_t limit) {
  return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random);
}

// Calls `check` with messages of all small sizes at all alignments, and with random ones.
template <typename Check>
void with_messages(const Check& check) {
  std::mt19937_64 random(7);
  const std::vector<std::uint8_t> bytes = random_bytes(1 << 16, random);
  for (std::size_t size = 0; size <= kSmall; ++size) {
    for (std::size_t start = 0; start < 16; ++start) check(Message(bytes).subspan(start, size));
  }
  for (int i = 0; i < kCases; ++i) {
    const std::size_t size = random_below(random, i % 10 == 0 ? 20'000 : 1'000);
    check(Message(bytes).subspan(random_below(random, 1'000), size));
  }
  // Carries run through all digits.
  const std::vector<std::uint8_t> ones(1'000, 0xff);
  for (std::size_t size = 0; size <= ones.size(); ++size) check(Message(ones).first(size));
}

// Calls `take` with the numbers of all parts that a message of `parts` has, in any order.
template <typename Take>
void in_any_order(std::uint64_t parts, std::mt19937_64& random, const Take& take) {
  std::vector<std::uint64_t> numbers(parts);
  std::iota(numbers.begin(), numbers.end(), 0);
  std::ranges::shuffle(numbers, random);
  for (const std::uint64_t number : numbers) take(number);
}

TEST(DeviceKernels, Sha256IsThatOfLibcrypto) {
  with_messages([](Message message) {
    std::array<std::uint8_t, kSha256Size> expected;
    std::array<std::uint8_t, kSha256Size> found;
    ASSERT_EQ(
        EVP_Digest(message.data(), message.size(), expected.data(), nullptr, EVP_sha256(), nullptr),
        1);
    sha256(message.data(), message.size(), found.data());
    ASSERT_EQ(found, expected) << message.size();
  });
}

TEST(DeviceKernels, Crc32OfPiecesIsThatOfLibdeflate) {
  static constexpr Crc32Tables kTables = crc32_tables();
  std::mt19937_64 random(8);
  with_messages([&](Message message) {
    const std::uint64_t piece = 1 + random_below(random, 100);
    const Crc32Powers powers = crc32_powers(piece);
    std::uint32_t sum = 0;
    in_any_order((message.size() + piece - 1) / piece, random, [&](std::uint64_t number) {
      sum ^= crc32_of_piece(kTables, powers, message.data(), message.size(), piece, number);
    });
    ASSERT_EQ(crc32_of(sum, message.size()), libdeflate_crc32(0, message.data(), message.size()));
  });
  // Of sizes that no memory has.
  EXPECT_EQ(crc32_times(crc32_power(std::uint64_t{1} << 40), crc32_power(12345)),
            crc32_power((std::uint64_t{1} << 40) + 12345));
}

TEST(DeviceKernels, Poly1305OfRunsIsThatOfLibsodium) {
  std::mt19937_64 random(9);
  int number = 0;
  with_messages([&](Message message) {
    std::vector<std::uint8_t> key = random_bytes(crypto_onetimeauth_KEYBYTES, random);
    if (++number % 5 == 0) std::ranges::fill(key, 0xff);
    std::array<std::uint8_t, kPolyMac> expected;
    std::array<std::uint8_t, kPolyMac> found;
    crypto_onetimeauth(expected.data(), message.data(), message.size(), key.data());
    const PolyNumber r = poly_r(key.data());
    const std::uint64_t blocks = 1 + random_below(random, 20);
    const PolyPowers powers = poly_powers(r, blocks);
    std::uint64_t sums[5] = {};
    const std::uint64_t runs = (poly_blocks(message.size()) + blocks - 1) / blocks;
    in_any_order(runs, random, [&](std::uint64_t run) {
      const PolyNumber one = poly_of_run(r, powers, message.data(), message.size(), blocks, run);
      for (int i = 0; i < 5; ++i) sums[i] += one.digits[i];
    });
    poly_finish(poly_of_sums(sums), key.data(), found.data());
    ASSERT_EQ(found, expected) << message.size();
  });
}

// The sums of as many runs as any message has.
TEST(DeviceKernels, Poly1305TakesLargeSums) {
  const PolyNumber most = {{kPolyDigit + 64, kPolyDigit + 64, kPolyDigit, kPolyDigit, kPolyDigit}};
  const std::uint64_t count = std::uint64_t{1} << 32;
  std::uint64_t sums[5];
  PolyNumber expected = most;
  for (int i = 0; i < 5; ++i) sums[i] = most.digits[i] * count;
  for (std::uint64_t n = 1; n < count; n *= 2) expected = poly_sum(expected, expected);
  std::array<std::uint8_t, 32> key{};
  std::array<std::uint8_t, kPolyMac> one;
  std::array<std::uint8_t, kPolyMac> other;
  poly_finish(poly_of_sums(sums), key.data(), one.data());
  poly_finish(expected, key.data(), other.data());
  EXPECT_EQ(one, other);
}

TEST(DeviceKernels, Poly1305ReducesCompletely) {
  std::array<std::uint8_t, 32> key{};
  for (std::uint32_t low = 0; low < 16; ++low) {
    const PolyNumber sum = {{kPolyDigit - low, kPolyDigit, kPolyDigit, kPolyDigit, kPolyDigit}};
    std::array<std::uint8_t, kPolyMac> mac;
    poly_finish(sum, key.data(), mac.data());
    // 2^130 - 1 - low, modulo 2^130 - 5 and then 2^128.
    const auto expected = static_cast<std::uint8_t>(low <= 4 ? 4 - low : 255 - low);
    EXPECT_EQ(mac[0], expected) << low;
    EXPECT_EQ(mac[15], low <= 4 ? 0 : 255) << low;
  }
}

TEST(DeviceKernels, SecretboxIsThatOfLibsodium) {
  ASSERT_GE(sodium_init(), 0);
  std::mt19937_64 random(10);
  with_messages([&](Message message) {
    const auto key = random_bytes(crypto_secretbox_KEYBYTES, random);
    const auto nonce = random_bytes(crypto_secretbox_NONCEBYTES, random);
    std::vector<std::uint8_t> expected(message.size() + 1);  // because libsodium takes no null
    std::array<std::uint8_t, kPolyMac> expected_mac;
    crypto_secretbox_detached(expected.data(), expected_mac.data(), message.data(), message.size(),
                              nonce.data(), key.data());

    const SalsaKey salsa = xsalsa_key(key.data(), nonce.data());
    std::vector<std::uint8_t> found(message.size() + 1);
    in_any_order(xsalsa_blocks(message.size()), random, [&](std::uint64_t block) {
      xsalsa_part(salsa, nonce.data() + 16, block, message.data(), found.data(), message.size());
    });
    ASSERT_EQ(found, expected);

    std::uint32_t stream[16];
    xsalsa_block(salsa, nonce.data() + 16, 0, stream);
    std::array<std::uint8_t, kSalsaSkipped> poly_key;
    for (int i = 0; i < 8; ++i) store_le32(poly_key.data() + 4 * i, stream[i]);
    std::array<std::uint8_t, kPolyMac> mac;
    poly_finish(poly_run(poly_r(poly_key.data()), found.data(), message.size()), poly_key.data(),
                mac.data());
    ASSERT_EQ(mac, expected_mac);
  });
}

}  // namespace
}  // namespace tensorizer::device
