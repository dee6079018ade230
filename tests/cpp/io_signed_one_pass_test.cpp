// Files that are hashed in one pass, while they are read in any order.
#include <future>
#include <semaphore>

#include "io/signed/one_pass_source.h"
#include "signed_files.h"

namespace tensorizer {
namespace {

using namespace testing_support;

constexpr std::uint64_t kMiB = 1 << 20;

class OnePassTest : public IoTest {
 protected:
  std::unique_ptr<OnePassSource> one_pass(std::uint64_t shard = ~std::uint64_t{0}) {
    const auto digests = std::make_shared<std::vector<Sha256Digest>>(digests_of(text_, shard));
    return std::make_unique<OnePassSource>(
        file_, SignedShards{text_.size(), shard, std::as_bytes(std::span(*digests)), digests,
                            "the signer"});
  }
  std::future<std::string> reader(Source& source, std::uint64_t offset, std::size_t size) {
    return std::async(std::launch::async, [&source, offset, size] {
      Cancel cancel;
      std::string out(size, '\0');
      const Bytes piece = std::as_writable_bytes(std::span(out));
      source.read(offset, {&piece, 1}, cancel);
      return out;
    });
  }
  void await_reads(std::size_t count) const {
    while (file_->times_read() < count) std::this_thread::yield();
  }
  // Starts the first read, of a MiB, which waits for goes_on_, and fails then if `fails` is set.
  std::future<std::string> held_reader(Source& source, bool fails = false) {
    file_->before = [this, fails](std::uint64_t, std::uint64_t, Cancel&) {
      if (is_held_.exchange(true)) return;
      goes_on_.acquire();
      if (fails) throw Error(ErrorKind::Unavailable, "away");
    };
    auto first = reader(source, 0, kMiB);
    await_reads(1);
    return first;
  }
  void expect_read_once(std::uint64_t end) const {
    for (std::uint64_t i = 0; i < end; ++i) ASSERT_EQ(file_->fetches(i), 1) << i;
  }
  // Calls `at` with offsets at which mistakes are likely.
  void each_offset(const std::function<void(std::uint64_t)>& at) const {
    for (const std::uint64_t offset :
         {std::uint64_t{0}, std::uint64_t{63}, 64 * std::uint64_t{1024}, kMiB - 1, kMiB,
          2 * kMiB + 77, std::uint64_t{text_.size() - 1}}) {
      at(offset);
    }
  }
  static bool says_other_bytes(const Error& error) {
    return error.kind() == ErrorKind::HashMismatch &&
           contains(error.what(), "are not those that the signer signed");
  }

  const std::string text_ = text_pattern(3 * kMiB + 1234);
  const std::shared_ptr<Stored> file_ = std::make_shared<Stored>(text_);
  std::binary_semaphore goes_on_{0};
  std::atomic<bool> is_held_ = false;
};

TEST_F(OnePassTest, ReadsInOrderReadEachByteOnce) {
  const auto source = one_pass();
  EXPECT_TRUE(source->signed_as());
  EXPECT_EQ(source->map(), nullptr);
  std::byte byte{};
  EXPECT_FALSE(source->read_anew(0, {&byte, 1}, cancel_));
  const std::size_t sizes[] = {1, 16, 65520, 70000, kMiB, 1};
  std::uint64_t at = 0;
  for (const std::size_t size : sizes) {
    EXPECT_TRUE(source->checks_at_end());
    EXPECT_TRUE(read(*source, at, size) == text_.substr(at, size));
    at += size;
  }
  EXPECT_TRUE(read_up_to(*source, at, text_.size()) == text_.substr(at));
  EXPECT_FALSE(source->checks_at_end());
  source->confirm(cancel_);
  expect_read_once(text_.size());
}

TEST_F(OnePassTest, ConfirmReadsWhatNobodyWanted) {
  const auto source = one_pass();
  EXPECT_TRUE(read(*source, 0, 100) == text_.substr(0, 100));
  source->confirm(cancel_);
  EXPECT_FALSE(source->checks_at_end());
  expect_read_once(text_.size());
  const std::size_t before = file_->times_read();
  source->confirm(cancel_);
  EXPECT_EQ(file_->times_read(), before);
}

TEST_F(OnePassTest, SaysWhereTheFileEnds) {
  const auto source = one_pass();
  const std::uint64_t size = text_.size();
  EXPECT_TRUE(contains(message_of([&] { read(*source, size - 3, 5); }), "expected 2 more"));
  EXPECT_EQ(kind_of([&] { read(*source, ~std::uint64_t{0}, 1); }), ErrorKind::InvalidFormat);
  EXPECT_EQ(read_up_to(*source, size + 1, 5), "");
  EXPECT_EQ(read(*source, size + 1, 0), "");
  file_->text += "x";
  EXPECT_EQ(kind_of([&] { one_pass(); }), ErrorKind::HashMismatch);
}

TEST_F(OnePassTest, EveryChangedByteIsNoticedAtTheEnd) {
  each_offset([&](std::uint64_t changed) {
    for (const std::uint64_t shard : {~std::uint64_t{0}, kMiB + 77, std::uint64_t{64 << 10}}) {
      const auto source = one_pass(shard);
      file_->text[changed] ^= 1;
      const Error error = error_of([&] {
        read(*source, 0, kMiB);
        source->confirm(cancel_);
      });
      EXPECT_TRUE(says_other_bytes(error)) << changed << ": " << error.what();
      // It never counts as signed, whatever comes later.
      file_->text[changed] ^= 1;
      EXPECT_TRUE(source->checks_at_end());
      EXPECT_TRUE(says_other_bytes(error_of([&] { source->confirm(cancel_); })));
      EXPECT_TRUE(says_other_bytes(error_of([&] { read(*source, 0, 1); })));
      EXPECT_TRUE(says_other_bytes(error_of([&] { read(*source, text_.size() - 1, 1); })));
    }
  });
}

TEST_F(OnePassTest, ShardsAreComparedWhenTheyEnd) {
  const auto source = one_pass(kMiB + 5);
  file_->text[3] ^= 1;
  EXPECT_TRUE(read(*source, 0, kMiB) == file_->text.substr(0, kMiB));
  const Error error = error_of([&] { read(*source, kMiB, 6); });
  EXPECT_TRUE(says_other_bytes(error));
  EXPECT_TRUE(contains(error.what(), "its bytes from 0 to 1048581")) << error.what();
}

TEST_F(OnePassTest, WhatIsReadAgainMustBeTheSame) {
  for (const bool is_confirmed : {false, true}) {
    each_offset([&](std::uint64_t changed) {
      const auto source = one_pass(2 * kMiB + 1);
      read(*source, 0, 100);
      read(*source, 100, 60000);
      read(*source, 60100, text_.size() - 60100 - (is_confirmed ? 0 : 1));
      if (is_confirmed) source->confirm(cancel_);
      if (changed == text_.size() - 1 && !is_confirmed) return;
      EXPECT_TRUE(read(*source, changed, 1) == text_.substr(changed, 1));
      const std::uint64_t size = std::min<std::uint64_t>(kMiB, text_.size() - 1 - changed);
      EXPECT_TRUE(read(*source, changed, size) == text_.substr(changed, size));
      file_->text[changed] ^= 1;
      const Error error = error_of([&] { read(*source, changed, 1); });
      EXPECT_EQ(error.kind(), ErrorKind::HashMismatch);
      EXPECT_TRUE(contains(error.what(), "were others when they were read before")) << error.what();
      file_->text[changed] ^= 1;
      source->confirm(cancel_);
    });
  }
}

// A read that begins before the frontier and ends behind it.
TEST_F(OnePassTest, ReadsMayOverlap) {
  const auto source = one_pass();
  for (const std::uint64_t at : {std::uint64_t{0}, std::uint64_t{30000}, kMiB, kMiB / 2}) {
    EXPECT_TRUE(read(*source, at, 2 * kMiB) == text_.substr(at, 2 * kMiB)) << at;
  }
  source->confirm(cancel_);
}

TEST_F(OnePassTest, ASmallGapIsReadAlong) {
  const auto source = one_pass();
  read(*source, 0, 1000);
  EXPECT_TRUE(read(*source, 5000, 1000) == text_.substr(5000, 1000));
  EXPECT_EQ(file_->times_read(), 2U);
  EXPECT_EQ(file_->fetches(1000), 1);
  EXPECT_EQ(file_->fetches(4999), 1);
  source->confirm(cancel_);
}

TEST_F(OnePassTest, AReadThatWaitsInVainReadsTheGap) {
  const auto source = one_pass();
  EXPECT_TRUE(read(*source, 2 * kMiB, 10) == text_.substr(2 * kMiB, 10));
  expect_read_once(2 * kMiB + 10);
  source->confirm(cancel_);
}

TEST_F(OnePassTest, ALaterReadWaitsWithItsBytes) {
  const auto source = one_pass();
  auto first = held_reader(*source);
  auto second = reader(*source, kMiB, kMiB);
  await_reads(2);
  EXPECT_EQ(second.wait_for(std::chrono::milliseconds(120)), std::future_status::timeout);
  // It can be cancelled meanwhile.
  expect_cancelled_soon([&] { read(*source, 2 * kMiB, 7); });
  goes_on_.release();
  EXPECT_TRUE(first.get() == text_.substr(0, kMiB));
  EXPECT_TRUE(second.get() == text_.substr(kMiB, kMiB));
  expect_read_once(2 * kMiB);
}

TEST_F(OnePassTest, ConfirmWaitsForReads) {
  const auto source = one_pass();
  auto first = held_reader(*source);
  expect_cancelled_soon([&] { source->confirm(cancel_); });
  goes_on_.release();
  Cancel cancel;
  source->confirm(cancel);
  EXPECT_TRUE(first.get() == text_.substr(0, kMiB));
  EXPECT_EQ(file_->fetches(0), 1);
}

TEST_F(OnePassTest, OthersGoOnWhenTheReadAtTheFrontierFails) {
  const auto source = one_pass();
  auto first = held_reader(*source, true);
  auto second = reader(*source, kMiB, kMiB);
  await_reads(2);
  goes_on_.release();
  EXPECT_EQ(kind_of([&] { first.get(); }), ErrorKind::Unavailable);
  EXPECT_TRUE(second.get() == text_.substr(kMiB, kMiB));
  EXPECT_TRUE(read(*source, 0, kMiB) == text_.substr(0, kMiB));
  source->confirm(cancel_);
}

TEST_F(OnePassTest, EverybodyWhoWaitsIsToldOfOtherBytes) {
  const auto source = one_pass(kMiB);
  file_->text[9] ^= 1;
  auto first = held_reader(*source);
  auto second = reader(*source, kMiB, kMiB);
  auto third = reader(*source, 2 * kMiB, kMiB);
  await_reads(3);
  goes_on_.release();
  for (auto* const each : {&first, &second, &third}) {
    EXPECT_TRUE(says_other_bytes(error_of([&] { each->get(); })));
  }
}

TEST_F(OnePassTest, TwoReadsOfTheSameBytes) {
  const auto source = one_pass();
  auto first = held_reader(*source);
  EXPECT_TRUE(read(*source, 0, 2 * kMiB) == text_.substr(0, 2 * kMiB));
  goes_on_.release();
  EXPECT_TRUE(first.get() == text_.substr(0, kMiB));
  source->confirm(cancel_);
}

TEST_F(OnePassTest, ManyReadersGetTheSignedBytesOrFail) {
  for (const bool is_damaged : {false, true}) {
    const auto source = one_pass(2 * kMiB);
    const std::string there = [&] {
      std::string text = text_;
      if (is_damaged) text[2 * kMiB + 5] ^= 1;
      return text;
    }();
    file_->text = there;
    std::atomic<std::uint32_t> calls = 0;
    file_->before = [&](std::uint64_t, std::uint64_t, Cancel&) {
      if (++calls % 17 == 0) throw Error(ErrorKind::Unavailable, "away");
    };
    {
      std::vector<std::jthread> threads;
      for (std::uint32_t i = 0; i < 4; ++i) {
        threads.emplace_back([&, i] {
          Dice dice(i + 1);
          Cancel cancel;
          for (int round = 0; round < 30; ++round) {
            const std::uint64_t offset = dice.below(there.size());
            std::string out(dice.below(std::min<std::uint64_t>(300000, there.size() - offset)),
                            '\0');
            const Bytes all = std::as_writable_bytes(std::span(out));
            const std::size_t cut = dice.below(out.size() + 1);
            const Bytes pieces[] = {all.first(cut), all.subspan(cut)};
            try {
              source->read(offset, pieces, cancel);
              EXPECT_TRUE(out == there.substr(offset, out.size()));
            } catch (const Error& error) {
              EXPECT_TRUE(error.kind() == ErrorKind::Unavailable ||
                          (is_damaged && says_other_bytes(error)))
                  << error.what();
            }
          }
        });
      }
    }
    file_->before = nullptr;
    if (is_damaged) {
      EXPECT_TRUE(says_other_bytes(error_of([&] { source->confirm(cancel_); })));
    } else {
      source->confirm(cancel_);
    }
  }
}

}  // namespace
}  // namespace tensorizer
