// What a SignedSource gives, and what it refuses.
#include <limits>
#include <set>

#include "signed_files.h"

namespace tensorizer {
namespace {

using namespace testing_support;

// Returns the offsets at, before and behind the edges of shards, and some between them.
std::vector<std::uint64_t> offsets(std::uint64_t size) {
  std::set<std::uint64_t> all;
  for (std::uint64_t edge = 0; edge <= size + kShard; edge += kShard) {
    for (const std::uint64_t at : {edge - 1, edge, edge + 1, edge + 20}) {
      if (at <= size) all.insert(at);
    }
  }
  for (const std::uint64_t at : {size - 1, size}) all.insert(at);
  return {all.begin(), all.end()};
}

TEST_F(SignedSourceTest, GivesTheBytesOfEveryRange) {
  Dice dice(1);
  const auto kept = signed_as(text_);
  for (const std::uint64_t begin : offsets(text_.size())) {
    for (const std::uint64_t end : offsets(text_.size())) {
      if (end < begin) continue;
      for (int cuts = 0; cuts < 5; ++cuts) {
        const auto fresh = signed_as(text_);
        for (Source* const source :
             {static_cast<Source*>(fresh.get()), static_cast<Source*>(kept.get())}) {
          std::string out(end - begin + 2, '#');
          Bytes left = std::as_writable_bytes(std::span(out)).subspan(1, end - begin);
          std::vector<Bytes> pieces;
          for (int i = 0; i < cuts; ++i) {
            const std::size_t size = dice.one_in(3) ? 0 : dice.below(left.size() + 1);
            pieces.push_back(left.first(size));
            left = left.subspan(size);
          }
          pieces.push_back(left);
          source->read(begin, pieces, cancel_);
          ASSERT_EQ(out, '#' + text_.substr(begin, end - begin) + '#') << begin << ' ' << end;
        }
      }
      ASSERT_EQ(read_up_to(*kept, begin, end - begin), text_.substr(begin, end - begin));
    }
  }
}

TEST_F(SignedSourceTest, ReadsWholeShardsOnce) {
  for (const std::uint64_t begin : offsets(text_.size() - 1)) {
    for (const std::uint64_t end : offsets(text_.size())) {
      if (end <= begin) continue;
      const std::size_t before = file_->times_read();
      const auto source = signed_as(text_);
      const auto fetches = [&] {
        std::vector<int> all;
        for (std::size_t i = 0; i < text_.size(); ++i) all.push_back(file_->fetches(i));
        return all;
      };
      const std::vector<int> earlier = fetches();
      read(*source, begin, end - begin);
      ASSERT_EQ(file_->times_read(), before + 1);
      const std::vector<int> now = fetches();
      for (std::size_t i = 0; i < text_.size(); ++i) {
        const bool is_touched = i / kShard >= begin / kShard && i / kShard <= (end - 1) / kShard;
        ASSERT_EQ(now[i] - earlier[i], is_touched) << i << " of " << begin << " to " << end;
      }
    }
  }
}

TEST_F(SignedSourceTest, SaysWhereTheFileEnds) {
  const auto source = signed_as(text_);
  const std::uint64_t size = text_.size();
  EXPECT_TRUE(contains(message_of([&] { read(*source, size - 3, 5); }), "expected 2 more"));
  EXPECT_EQ(kind_of([&] { read(*source, size + 1000, 1); }), ErrorKind::InvalidFormat);
  EXPECT_EQ(kind_of([&] { read(*source, ~std::uint64_t{0}, 1); }), ErrorKind::InvalidFormat);
  EXPECT_EQ(file_->times_read(), 0U);
  EXPECT_EQ(read_up_to(*source, size - 3, 5), text_.substr(size - 3));
  for (const std::uint64_t at : {size, size + 1, size + 1000, ~std::uint64_t{0}}) {
    EXPECT_EQ(read_up_to(*source, at, 5), "");
    EXPECT_EQ(read(*source, at, 0), "");
  }
  EXPECT_EQ(file_->times_read(), 1U);
}

TEST_F(SignedSourceTest, NothingComesPastTheCheck) {
  const auto source = signed_as(text_);
  EXPECT_TRUE(source->signed_as());
  EXPECT_EQ(source->map(), nullptr);
  Mapping space(kMappingUnit, "space");
  EXPECT_FALSE(source->map_into(space, 0));
  std::byte byte{};
  file_->anew = text_;
  EXPECT_FALSE(source->read_anew(0, {&byte, 1}, cancel_));
  EXPECT_EQ(source->hints(0, 1).unit, kShard);
}

TEST_F(SignedSourceTest, RefusesEveryChangedByte) {
  for (std::uint64_t at = 0; at < text_.size(); ++at) {
    const std::uint64_t begin = at / kShard * kShard;
    const std::uint64_t end = std::min<std::uint64_t>(begin + kShard, text_.size());
    const auto source = signed_as(text_);
    file_->text[at] ^= 1;
    const auto refusal = [&](std::uint64_t offset, std::uint64_t size) {
      const Error error = error_of([&] { read(*source, offset, size); });
      EXPECT_EQ(error.kind(), ErrorKind::HashMismatch);
      EXPECT_TRUE(contains(error.what(), "'stored': its bytes from " + std::to_string(begin) +
                                             " to " + std::to_string(end) +
                                             " are not those that the signer signed"))
          << error.what();
    };
    refusal(0, text_.size());
    refusal(at, 1);
    refusal(begin, 1);
    refusal(end - 1, 1);
    refusal(begin, end - begin);
    // The other shards are as they were signed.
    ASSERT_EQ(read(*source, 0, begin), text_.substr(0, begin));
    ASSERT_EQ(read(*source, end, text_.size() - end), text_.substr(end));
    // What failed is read again.
    file_->text[at] ^= 1;
    ASSERT_EQ(read(*source, at, 1), text_.substr(at, 1));
  }
}

TEST_F(SignedSourceTest, BytesThatChangeAfterTheCheckAreNotReadAgain) {
  const auto source = signed_as(text_);
  EXPECT_EQ(read(*source, 3, 4), text_.substr(3, 4));
  file_->text.assign(text_.size(), '!');
  EXPECT_EQ(read(*source, 20, 4), text_.substr(20, 4));
  EXPECT_EQ(kind_of([&] { read(*source, kShard + 1, 1); }), ErrorKind::HashMismatch);
}

TEST_F(SignedSourceTest, RefusesShardsInAnotherOrder) {
  std::rotate(file_->text.begin(), file_->text.begin() + kShard, file_->text.begin() + 2 * kShard);
  const auto source = signed_as(text_);
  for (const std::uint64_t at : {std::uint64_t{0}, kShard, kShard + 5}) {
    EXPECT_EQ(kind_of([&] { read(*source, at, 1); }), ErrorKind::HashMismatch);
  }
  EXPECT_EQ(read(*source, 2 * kShard, kShard), text_.substr(2 * kShard, kShard));
}

TEST_F(SignedSourceTest, RefusesOtherSizes) {
  for (const std::string& other : {text_.substr(0, text_.size() - 1), text_ + '\0', std::string(),
                                   text_.substr(0, kShard), text_ + text_pattern(kShard)}) {
    file_->text = other;
    const Error error = error_of([&] { signed_as(text_); });
    EXPECT_EQ(error.kind(), ErrorKind::HashMismatch);
    EXPECT_TRUE(contains(error.what(), "it has " + std::to_string(other.size()) +
                                           " bytes, and the signer signed " +
                                           std::to_string(text_.size())))
        << error.what();
  }
}

// A bundle may name any size of its shards.
TEST_F(SignedSourceTest, ShardsMayBeLargerThanTheFile) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  for (const std::uint64_t shard :
       {std::uint64_t{text_.size()}, std::uint64_t{text_.size() + 1}, kMost / 2, kMost / 2 + 1,
        kMost - text_.size(), kMost - 1, kMost}) {
    const auto source = signed_as(text_, shard);
    EXPECT_EQ(read(*source, 5, 7), text_.substr(5, 7));
    EXPECT_EQ(read(*source, 0, text_.size()), text_);
    for (const std::uint64_t at :
         {std::uint64_t{0}, std::uint64_t{70}, std::uint64_t{text_.size() - 1}}) {
      const auto fresh = signed_as(text_, shard);
      file_->text[at] ^= 1;
      for (const std::uint64_t size : {std::uint64_t{1}, std::uint64_t{text_.size() - 70}}) {
        EXPECT_EQ(kind_of([&] { read(*fresh, 70, size); }), ErrorKind::HashMismatch) << shard;
      }
      EXPECT_EQ(kind_of([&] { read(*fresh, 0, text_.size()); }), ErrorKind::HashMismatch) << shard;
      file_->text[at] ^= 1;
    }
  }
}

TEST_F(SignedSourceTest, KeepsAFewShards) {
  constexpr std::uint64_t kLarge = 7 << 20;  // two of them stay
  const std::string text = text_pattern(4 * kLarge);
  file_->text = text;
  const auto source = signed_as(text, kLarge);
  for (const std::uint64_t shard : {0, 1, 2}) {
    EXPECT_EQ(read(*source, shard * kLarge + 5, 3), text.substr(shard * kLarge + 5, 3));
  }
  for (const std::uint64_t shard : {2, 1, 0}) {
    EXPECT_EQ(read(*source, shard * kLarge + 500, 3), text.substr(shard * kLarge + 500, 3));
  }
  EXPECT_EQ(file_->fetches(0), 2);
  EXPECT_EQ(file_->fetches(kLarge), 1);
  EXPECT_EQ(file_->fetches(2 * kLarge), 1);
  // The second and the first one are there now.
  for (const std::uint64_t shard : {3, 2, 1}) read(*source, shard * kLarge, 3);
  EXPECT_EQ(file_->fetches(kLarge), 2);
  EXPECT_EQ(file_->fetches(2 * kLarge), 2);
}

// ---- caches on the way

TEST_F(SignedSourceTest, AShardThatACacheDamagedIsReadAnew) {
  const auto source = signed_as(text_);
  file_->anew = text_;
  file_->text[kShard + 7] ^= 1;
  file_->text[3 * kShard] ^= 1;
  std::string out(text_.size(), '\0');
  const Bytes all = std::as_writable_bytes(std::span(out));
  // Pieces that end within the damaged shard.
  const Bytes pieces[] = {
      all.first(kShard + 3), {}, all.subspan(kShard + 3, 5), all.subspan(kShard + 8)};
  source->read(0, pieces, cancel_);
  EXPECT_EQ(out, text_);
  EXPECT_EQ(file_->times_anew, 2);
  EXPECT_EQ(read(*signed_as(text_), kShard + 1, 9), text_.substr(kShard + 1, 9));
  EXPECT_EQ(file_->times_anew, 3);
  EXPECT_EQ(read(*source, 0, 5), text_.substr(0, 5));
  EXPECT_EQ(file_->times_anew, 3);
}

TEST_F(SignedSourceTest, WhatIsReadAnewIsCheckedToo) {
  const auto source = signed_as(text_);
  file_->text[kShard + 7] ^= 1;
  file_->anew = text_;
  file_->anew[kShard + 8] ^= 1;
  const Error error = error_of([&] { read(*source, 0, text_.size()); });
  EXPECT_EQ(error.kind(), ErrorKind::HashMismatch);
  const std::string found =
      to_hex(sha256(as_bytes(std::string_view(file_->anew).substr(kShard, kShard))));
  EXPECT_TRUE(contains(error.what(), "from 64 to 128")) << error.what();
  EXPECT_TRUE(contains(error.what(), found)) << error.what();
  EXPECT_EQ(file_->times_anew, 1);
}

}  // namespace
}  // namespace tensorizer
