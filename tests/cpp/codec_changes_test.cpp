// Codes of changes: they give back what was encoded, by every kind of processor, and any bytes in
// their place do no harm.
#include "codec/changes.h"

#include <algorithm>
#include <random>

#include "codec/changes_bits.h"
#include "codec/changes_scan.h"
#include "support.h"

namespace tensorizer {
namespace {

using Block = std::vector<std::byte>;

const ElementKind kKinds[] = {{1, false}, {1, true}, {2, false}, {2, true},
                              {4, false}, {4, true}, {8, false}, {8, true}};
const std::size_t kCounts[] = {1, 2, 63, 64, 65, 127, 200, 4095, 4096, 4097, 10000};

class ChangesTest : public testing::Test {
 protected:
  std::mt19937_64 random{1};

  bool one_in(std::uint64_t n) { return random() % n == 0; }

  // Elements whose exponents are not equally frequent, as in weights.
  Block some_block(ElementKind kind, std::size_t count) {
    Block block(count * kind.size);
    std::ranges::generate(block, [&] { return static_cast<std::byte>(random()); });
    if (kind.floating && !one_in(4)) {
      for (std::size_t i = kind.size - 1; i < block.size(); i += kind.size) {
        block[i] = static_cast<std::byte>((random() & 0x80) | (0x38 + random() % 4));
      }
    }
    return block;
  }

  // Changes one element in `rarity`, by little or to anything.
  Block changed(ElementKind kind, Block block, std::uint64_t rarity) {
    for (std::size_t at = 0; at < block.size(); at += kind.size) {
      if (!one_in(rarity)) continue;
      if (one_in(8)) {
        for (std::size_t i = 0; i < kind.size; ++i)
          block[at + i] = static_cast<std::byte>(random());
      } else {
        block[at] = static_cast<std::byte>(std::to_integer<int>(block[at]) + 1);
      }
    }
    return block;
  }
};

TEST_F(ChangesTest, GivesBackWhatWasEncoded) {
  for (const ElementKind kind : kKinds) {
    for (const std::size_t count : kCounts) {
      for (const std::uint64_t rarity : {1, 2, 3, 30, 1000}) {
        const Block base = some_block(kind, count);
        const Block fresh = changed(kind, base, rarity);
        Block code(3);  // of another block
        encode_changes(kind, base, fresh, code);
        const ConstBytes added = ConstBytes(code).subspan(3);
        EXPECT_EQ(added.empty(), base == fresh);
        EXPECT_LE(added.size(), base.size());
        Block made = base;
        ASSERT_TRUE(apply_changes(kind, added, made));
        ASSERT_EQ(made, fresh) << kind.size << kind.floating << " " << count << " " << rarity;
      }
    }
  }
}

TEST_F(ChangesTest, CodesWholeBlocks) {
  for (const ElementKind kind : kKinds) {
    const Block base = some_block(kind, kChangesBlock / kind.size);
    for (const std::uint64_t rarity : {1, 30}) {
      const Block fresh = changed(kind, base, rarity);
      Block code;
      encode_changes(kind, base, fresh, code);
      if (rarity == 30) EXPECT_LT(code.size(), base.size() / 4);
      Block made = base;
      ASSERT_TRUE(apply_changes(kind, code, made));
      ASSERT_EQ(made, fresh);
    }
  }
}

TEST_F(ChangesTest, StoresWhatNoCodeMakesShorter) {
  const ElementKind kind{8, false};
  const Block base = some_block(kind, 1000);
  const Block fresh = some_block(kind, 1000);
  Block code;
  encode_changes(kind, base, fresh, code);
  EXPECT_EQ(code, fresh);
}

TEST_F(ChangesTest, ScansAreTheSameOnAllProcessors) {
  const Scan fast = avx512_scan();
  const Scan slow = portable_scan();
  if (fast.classify == nullptr) GTEST_SKIP() << "this processor has no AVX-512";
  for (const ElementKind kind : kKinds) {
    for (std::size_t count = 1; count <= kBatch; count += 1 + count / 3) {
      Thresholds thresholds;
      thresholds.count = random() % kMostClasses;
      for (std::uint8_t& key : thresholds.keys) key = static_cast<std::uint8_t>(random());
      std::sort(thresholds.keys.begin(),
                thresholds.keys.begin() + static_cast<std::ptrdiff_t>(thresholds.count));
      const Block base = some_block(kind, count);
      const Block fresh = changed(kind, base, 5);
      const std::size_t words = (count + kWordBits - 1) / kWordBits;
      ClassMasks masks[2];
      std::vector<std::uint64_t> bits[2];
      for (int i = 0; i < 2; ++i) {
        const Scan& scan = i == 0 ? slow : fast;
        scan.classify(kind.size, base.data(), count, thresholds, masks[i]);
        bits[i].resize(words);
        scan.compare(kind.size, base.data(), fresh.data(), count, bits[i].data());
      }
      ASSERT_EQ(bits[0], bits[1]);
      std::size_t of_all = 0;
      for (std::size_t c = 0; c <= thresholds.count; ++c) {
        for (std::size_t i = 0; i < words; ++i) {
          ASSERT_EQ(masks[0].bits[c][i], masks[1].bits[c][i]);
          ASSERT_EQ(masks[0].counts[c][i], masks[1].counts[c][i]);
        }
        ASSERT_EQ(masks[0].totals[c], masks[1].totals[c]);
        of_all += masks[0].totals[c];
        Places ranked[2];
        Places placed[2];
        const std::size_t found = slow.rank(masks[0], c, bits[0].data(), words, 7, ranked[0]);
        ASSERT_EQ(fast.rank(masks[0], c, bits[0].data(), words, 7, ranked[1]), found);
        // One more is behind the batch.
        ranked[0].ranks[found] = ranked[1].ranks[found] = 7 + masks[0].totals[c];
        for (int i = 0; i < 2; ++i) {
          const Scan& scan = i == 0 ? slow : fast;
          ASSERT_EQ(scan.place(masks[0], c, ranked[i].ranks.data(), found + 1, words, 7, placed[i]),
                    found);
        }
        for (std::size_t i = 0; i < found; ++i) {
          ASSERT_EQ(ranked[0].ranks[i], ranked[1].ranks[i]);
          ASSERT_EQ(ranked[0].positions[i], ranked[1].positions[i]);
          ASSERT_EQ(placed[0].positions[i], ranked[0].positions[i]);
          ASSERT_EQ(placed[1].positions[i], ranked[0].positions[i]);
        }
      }
      ASSERT_EQ(of_all, count);
    }
  }
}

TEST_F(ChangesTest, DamagedCodesDoNoHarm) {
  std::size_t refused = 0;
  for (int round = 0; round < 4000; ++round) {
    const ElementKind kind = kKinds[random() % std::size(kKinds)];
    const Block base = some_block(kind, 1 + random() % 3000);
    Block code;
    encode_changes(kind, base, changed(kind, base, 1 + random() % 40), code);
    if (code.empty()) continue;
    if (one_in(3)) {
      code.resize(random() % code.size());
    } else if (one_in(2)) {
      for (std::byte& byte : code) byte = static_cast<std::byte>(random() & random());
    } else {
      code[random() % code.size()] ^= std::byte{1} << random() % 8;
    }
    Block made = base;
    refused += apply_changes(kind, code, made) ? 0 : 1;
    EXPECT_EQ(made.size(), base.size());
  }
  EXPECT_GT(refused, 1000);
}

// The code of two thresholds, and of no changes in three classes: 145 bits.
Block with_thresholds(unsigned first, unsigned second) {
  Block code(19);
  const unsigned bits = 2 | first << 3 | second << 11;
  for (std::size_t i = 0; i < 3; ++i) code[i] = static_cast<std::byte>(bits >> 8 * i);
  return code;
}

TEST_F(ChangesTest, ThresholdsMustAscend) {
  for (const unsigned second : {4U, 5U, 6U}) {
    const Block code = with_thresholds(5, second);
    Block block = some_block({2, true}, 100);
    const Block before = block;
    EXPECT_EQ(apply_changes({2, true}, code, block), second > 5);
    EXPECT_EQ(block, before);
  }
}

TEST_F(ChangesTest, IntegersHaveNoThresholds) {
  const Block code = with_thresholds(5, 6);
  for (const ElementKind kind : kKinds) {
    Block block = some_block(kind, 100);
    EXPECT_EQ(apply_changes(kind, code, block), kind.floating) << kind.size;
  }
}

TEST_F(ChangesTest, BitsThatFillTheLastByteAreZeros) {
  for (int bit = 1; bit < 8; ++bit) {
    Block code = with_thresholds(5, 6);
    code.back() |= std::byte{1} << bit;
    Block block = some_block({2, true}, 100);
    EXPECT_FALSE(apply_changes({2, true}, code, block)) << bit;
  }
}

TEST_F(ChangesTest, NumbersHaveNoMoreBitsThanAnElement) {
  // One of 100 bytes grows by 2 more than the number, whose bits above the lowest 5 are these.
  for (const unsigned above : {7U, 8U}) {
    Block code;
    BitWriter bits(code);
    bits.put(0, 3);
    for (const int list : {0, 1}) {
      bits.put(1, 21);  // one is chosen, and listed: the first
      bits.put(0, 1);
      bits.put(0, 6);
      bits.put(1, 1);
      if (list == 0) bits.put(0, 1);  // it grows
    }
    bits.put(5, 6);
    bits.put_number(above << 5, {5, 8});
    bits.finish();
    Block block(100);
    EXPECT_EQ(apply_changes({1, false}, code, block), above == 7);
    EXPECT_EQ(block[0], above == 7 ? std::byte{7 * 32 + 2} : std::byte{0});
  }
}

TEST_F(ChangesTest, BitsBehindTheCodeAreRefused) {
  const ElementKind kind{2, true};
  const Block base = some_block(kind, 5000);
  Block code;
  encode_changes(kind, base, changed(kind, base, 50), code);
  Block made = base;
  code.push_back(std::byte{0});
  EXPECT_FALSE(apply_changes(kind, code, made));
}

}  // namespace
}  // namespace tensorizer
