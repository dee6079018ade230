#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <zlib.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codec/crc32.h"
#include "codec/sha256.h"
#include "codec/sha256_variants.h"

namespace tensorizer {
namespace {

std::vector<std::byte> random_bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::size_t random_below(std::mt19937_64& random, std::size_t limit) {
  return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random);
}

std::string hex(const Sha256Digest& digest) {
  std::string text;
  for (const std::byte byte : digest) {
    for (const int half : {std::to_integer<int>(byte) >> 4, std::to_integer<int>(byte) & 15}) {
      text += "0123456789abcdef"[half];
    }
  }
  return text;
}

std::string expected_sha256(ConstBytes bytes) {
  Sha256Digest digest;
  EXPECT_EQ(EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()),
                       nullptr, EVP_sha256(), nullptr),
            1);
  return hex(digest);
}

// --- SHA-256, every variant ---

std::vector<Sha256Kernel> first_of(Sha256Variant variant, std::size_t lanes) {
  const auto kernels = variant.kernels.first(std::min(lanes, variant.kernels.size()));
  return {kernels.begin(), kernels.end()};
}

struct Param {
  const char* name;
  std::vector<Sha256Kernel> (*kernels)();  // empty if the processor lacks the instructions
};

class Sha256VariantTest : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    kernels_ = GetParam().kernels();
    if (kernels_.empty()) GTEST_SKIP() << "this processor has no such instructions";
    variant_ = {kernels_};
  }

  // Feeds messages[i] with contents[i] in random pieces, some empty, several messages at a time.
  void feed_in_pieces(std::vector<Sha256>& messages, const std::vector<ConstBytes>& contents,
                      std::mt19937_64& random) {
    std::vector<ConstBytes> rest = contents;
    bool more = true;
    while (more) {
      more = false;
      std::vector<Sha256Update> updates;
      for (std::size_t i = 0; i < messages.size(); ++i) {
        if (random_below(random, 3) > 0) {
          const std::size_t most = rest[i].size() + 1;
          const std::size_t size = random_below(
              random, random_below(random, 2) ? most : std::min<std::size_t>(most, 99));
          updates.push_back({&messages[i], rest[i].first(size)});
          rest[i] = rest[i].subspan(size);
        }
        more = more || !rest[i].empty();
      }
      std::shuffle(updates.begin(), updates.end(), random);
      sha256_update(variant_, updates);
    }
  }

  void expect_digests(std::vector<Sha256>& messages, const std::vector<ConstBytes>& contents) {
    std::vector<Sha256*> pointers;
    for (auto& message : messages) pointers.push_back(&message);
    std::vector<Sha256Digest> digests(messages.size());
    sha256_finish(variant_, pointers, digests);
    for (std::size_t i = 0; i < messages.size(); ++i) {
      ASSERT_EQ(hex(digests[i]), expected_sha256(contents[i]))
          << "message " << i << " of " << contents[i].size() << " bytes";
    }
  }

  // Passes all messages in one call, and expects their digests.
  void expect_right_at_once(const std::vector<ConstBytes>& contents) {
    std::vector<Sha256> messages(contents.size());
    std::vector<Sha256Update> updates;
    for (std::size_t i = 0; i < contents.size(); ++i) {
      updates.push_back({&messages[i], contents[i]});
    }
    sha256_update(variant_, updates);
    expect_digests(messages, contents);
  }

  std::vector<Sha256Kernel> kernels_;
  Sha256Variant variant_;
};

TEST_P(Sha256VariantTest, NistVectors) {
  const std::string million(1'000'000, 'a');
  const std::pair<std::string_view, const char*> vectors[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmn"
       "opqr"
       "smnopqrstnopqrstu",
       "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
      {million, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
  };
  for (const auto& [text, digest] : vectors) {
    Sha256 message;
    Sha256* const pointer = &message;
    const Sha256Update update{&message, as_bytes(text)};
    Sha256Digest result;
    sha256_update(variant_, {&update, 1});
    sha256_finish(variant_, {&pointer, 1}, {&result, 1});
    EXPECT_EQ(hex(result), digest);
  }
}

TEST_P(Sha256VariantTest, EveryLengthAroundTheBlocks) {
  const auto bytes = random_bytes(300, 1);
  std::vector<ConstBytes> contents;
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    contents.push_back(ConstBytes(bytes).first(size));
  }
  expect_right_at_once(contents);
}

TEST_P(Sha256VariantTest, EverySplitOfAShortMessage) {
  const auto bytes = random_bytes(200, 2);
  for (const std::size_t size : {63, 64, 65, 127, 128, 129, 200}) {
    const std::vector<ConstBytes> contents(size + 1, ConstBytes(bytes).first(size));
    std::vector<Sha256> messages(contents.size());
    std::vector<Sha256Update> heads, rests;
    for (std::size_t split = 0; split <= size; ++split) {
      heads.push_back({&messages[split], contents[split].first(split)});
      rests.push_back({&messages[split], contents[split].subspan(split)});
    }
    sha256_update(variant_, heads);
    sha256_update(variant_, rests);
    expect_digests(messages, contents);
  }
}

TEST_P(Sha256VariantTest, FewMessages) {
  const auto bytes = random_bytes(5000, 3);
  for (std::size_t count = 0; count <= 33; ++count) {
    std::vector<ConstBytes> contents;
    for (std::size_t i = 0; i < count; ++i) {
      contents.push_back(ConstBytes(bytes).subspan(i, 4096 - i * 111));
    }
    expect_right_at_once(contents);
    std::reverse(contents.begin(), contents.end());
    expect_right_at_once(contents);
  }
}

TEST_P(Sha256VariantTest, ManySmallAndFewLarge) {
  std::mt19937_64 random(4);
  const auto bytes = random_bytes(600'000, 5);
  std::vector<ConstBytes> contents;
  for (int i = 0; i < 300; ++i) {
    const std::size_t limit = i % 60 == 7 ? 500'000 : i % 7 == 0 ? 70 : 2500;
    const std::size_t size = random_below(random, limit);
    contents.push_back(ConstBytes(bytes).subspan(random_below(random, bytes.size() - size), size));
  }
  expect_right_at_once(contents);
}

TEST_P(Sha256VariantTest, RandomPieces) {
  std::mt19937_64 random(6);
  const auto bytes = random_bytes(40'000, 7);
  for (int round = 0; round < 30; ++round) {
    std::vector<ConstBytes> contents;
    for (std::size_t i = random_below(random, 40); i > 0; --i) {
      const std::size_t size = random_below(random, random_below(random, 2) ? 30'000 : 300);
      contents.push_back(
          ConstBytes(bytes).subspan(random_below(random, bytes.size() - size), size));
    }
    std::vector<Sha256> messages(contents.size());
    feed_in_pieces(messages, contents, random);
    expect_digests(messages, contents);
  }
}

template <std::size_t kLanes>
std::vector<Sha256Kernel> shani() {
  return first_of(sha256_shani(), kLanes);
}

template <std::size_t kLanes>
std::vector<Sha256Kernel> avx512() {
  return first_of(sha256_avx512(), kLanes);
}

std::vector<Sha256Kernel> libcrypto() { return first_of(sha256_libcrypto(), 1); }

// Returns the kernels of both variants together, or none if the processor lacks one of them.
template <Sha256Variant (*kFew)() noexcept>
std::vector<Sha256Kernel> and_avx512() {
  if (kFew().kernels.empty() || sha256_avx512().kernels.empty()) return {};
  return sha256_fastest(kFew(), sha256_avx512());
}

INSTANTIATE_TEST_SUITE_P(
    Variants, Sha256VariantTest,
    testing::Values(Param{"libcrypto", libcrypto}, Param{"shani_1_lane", shani<1>},
                    Param{"shani_2_lanes", shani<2>}, Param{"shani_3_lanes", shani<3>},
                    Param{"shani_4_lanes", shani<4>}, Param{"avx512_1_lane", avx512<1>},
                    Param{"avx512_15_lanes", avx512<15>}, Param{"avx512_16_lanes", avx512<16>},
                    Param{"libcrypto_and_avx512", and_avx512<sha256_libcrypto>},
                    Param{"shani_and_avx512", and_avx512<sha256_shani>}),
    [](const auto& info) { return info.param.name; });

// Sixteen lanes take as long as nine messages that are hashed four at a time, and as long as three
// that are hashed one at a time. So they pay from nine messages on, or from three.
TEST(Sha256Fastest, IsTheWiderOneWhereItPays) {
  const std::vector<Sha256Kernel> narrow(
      4, [](std::uint32_t* const[], const std::byte* const[], std::size_t) noexcept {});
  const std::vector<Sha256Kernel> wide(
      16, [](std::uint32_t* const[], const std::byte* const[], std::size_t) noexcept {});
  for (const auto& [lanes, from] : {std::pair<std::size_t, std::size_t>{1, 3}, {4, 9}}) {
    std::vector<Sha256Kernel> expected(16, nullptr);
    std::fill_n(expected.begin(), lanes, narrow[0]);
    std::fill(expected.begin() + static_cast<std::ptrdiff_t>(from) - 1, expected.end(), wide[0]);
    EXPECT_EQ(sha256_fastest({std::span(narrow).first(lanes)}, {wide}), expected) << lanes;
  }
}

// --- SHA-256, the interface for other layers ---

TEST(Sha256Test, LanesMatchTheProcessor) {
  const std::size_t lanes =
      std::max({sha256_libcrypto().kernels.size(), sha256_shani().kernels.size(),
                sha256_avx512().kernels.size()});
  EXPECT_EQ(sha256_lanes(), static_cast<int>(lanes));
}

TEST(Sha256Test, OneMessage) {
  const auto bytes = random_bytes(10'000, 8);
  Sha256 message;
  message.update({});
  message.update(ConstBytes(bytes).first(77));
  message.update({});
  message.update(ConstBytes(bytes).subspan(77));
  EXPECT_EQ(hex(message.finish()), expected_sha256(bytes));
}

TEST(Sha256Test, ManyMessages) {
  const auto bytes = random_bytes(10'000, 9);
  std::vector<Sha256> messages(10);
  std::vector<Sha256Update> updates;
  std::vector<Sha256*> pointers;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    updates.push_back({&messages[i], ConstBytes(bytes).first(1000 * i)});
    pointers.push_back(&messages[i]);
  }
  std::vector<Sha256Digest> digests(messages.size());
  sha256_update(updates);
  sha256_finish(pointers, digests);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    EXPECT_EQ(hex(digests[i]), expected_sha256(updates[i].bytes));
  }
}

TEST(Sha256Test, ACopyGoesItsOwnWay) {
  const auto bytes = random_bytes(300, 10);
  Sha256 one;
  one.update(ConstBytes(bytes).first(100));
  Sha256 other = one;
  one.update(ConstBytes(bytes).subspan(100));
  EXPECT_EQ(hex(other.finish()), expected_sha256(ConstBytes(bytes).first(100)));
  EXPECT_EQ(hex(one.finish()), expected_sha256(bytes));
}

#if defined(__x86_64__)

// The computation does not use the upper halves of the registers, but what they hold could slow it
// down.
TEST(Sha256Test, IsAsFastWhateverTheRegistersHeld) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this processor has no such halves";
  const auto bytes = random_bytes(1 << 20, 13);
  const auto shortest = [&](bool filled) {
    auto best = std::chrono::steady_clock::duration::max();
    for (int round = 0; round < 5; ++round) {
      Sha256 message;
      const auto start = std::chrono::steady_clock::now();
      if (filled) {
        asm volatile("vpcmpeqd %%ymm15, %%ymm15, %%ymm15" ::: "xmm15");
      } else {
        asm volatile("vzeroupper");
      }
      message.update(bytes);
      best = std::min(best, std::chrono::steady_clock::now() - start);
    }
    return best;
  };
  EXPECT_LT(shortest(true), 10 * shortest(false));
}

#endif

// --- CRC32 ---

std::uint32_t expected_crc32(ConstBytes bytes) {
  return static_cast<std::uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

TEST(Crc32Test, MatchesZlib) {
  EXPECT_EQ(tensorizer::crc32(0, as_bytes("123456789")), 0xcbf43926u);
  const auto bytes = random_bytes(100'000, 11);
  std::mt19937_64 random(12);
  for (int round = 0; round < 2000; ++round) {
    const std::size_t size =
        round < 600 ? static_cast<std::size_t>(round) : random_below(random, 50'000);
    const auto part = ConstBytes(bytes).subspan(random_below(random, 1000), size);
    const std::size_t split = random_below(random, size + 1);
    ASSERT_EQ(tensorizer::crc32(0, part), expected_crc32(part)) << size;
    ASSERT_EQ(tensorizer::crc32(tensorizer::crc32(0, part.first(split)), part.subspan(split)),
              expected_crc32(part))
        << size << " split at " << split;
  }
}

TEST(Crc32Test, NothingChangesNothing) {
  EXPECT_EQ(tensorizer::crc32(0, {}), 0u);
  EXPECT_EQ(tensorizer::crc32(0x12345678u, {}), 0x12345678u);
  EXPECT_EQ(crc32_join(0x12345678u, 0, 0), 0x12345678u);
}

TEST(Crc32Test, JoinsWhatWasSplit) {
  const auto bytes = random_bytes(5000, 13);
  for (std::size_t split = 0; split <= bytes.size(); split += split < 300 ? 1 : 47) {
    const auto first = ConstBytes(bytes).first(split);
    const auto second = ConstBytes(bytes).subspan(split);
    ASSERT_EQ(crc32_join(tensorizer::crc32(0, first), tensorizer::crc32(0, second), second.size()),
              expected_crc32(bytes))
        << split;
  }
}

// Returns the CRC32 of `size` zero bytes, by doubling.
std::uint32_t crc32_of_zeros(std::uint64_t size) {
  if (size == 0) return 0;
  const std::uint32_t half = crc32_of_zeros(size / 2);
  const std::uint32_t even = crc32_join(half, half, size / 2);
  return size % 2 ? tensorizer::crc32(even, std::vector<std::byte>(1)) : even;
}

TEST(Crc32Test, JoinsSizesBeyondAnyMemory) {
  EXPECT_EQ(crc32_of_zeros(1'000'003), expected_crc32(std::vector<std::byte>(1'000'003)));
  const std::uint64_t four_gib = std::uint64_t{1} << 32;
  const std::uint32_t first = 0xdeadbeefu;
  for (const std::uint64_t size :
       {four_gib - 1, four_gib, four_gib + 1, 5 * four_gib + 12'345, (std::uint64_t{1} << 62) + 1,
        (std::uint64_t{1} << 63) - 1, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    // Appends zeros in two ways: at once, and in two unequal parts.
    const std::uint64_t part = size / 3 + 7;
    const std::uint32_t at_once = crc32_join(first, crc32_of_zeros(size), size);
    const std::uint32_t in_parts = crc32_join(crc32_join(first, crc32_of_zeros(part), part),
                                              crc32_of_zeros(size - part), size - part);
    EXPECT_EQ(at_once, in_parts) << size;
    if (size < std::uint64_t{1} << 63) {
      EXPECT_EQ(at_once, crc32_combine(first, crc32_of_zeros(size), static_cast<z_off_t>(size)));
    }
  }
}

}  // namespace
}  // namespace tensorizer
