// Loads, fetches, cancels and failures of a PrefetchCache at the same time, under the sanitizers,
// and what a fetch does to the bytes of others and to its own.
#include "engine/open/prefetch_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "base/error.h"
#include "io_support.h"

namespace tensorizer {
namespace {

using testing_support::kind_of;
using testing_support::OnceItWaits;
using testing_support::pattern;

constexpr std::uint64_t kUnit = 100'000;
constexpr std::uint64_t kUnits = 64;

// A slow file, some of whose reads fail.
class FragileSource final : public Source {
 public:
  explicit FragileSource(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}

  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    cancel.check();
    if (++reads_ % 97 == 0) throw Error(ErrorKind::Unavailable, "the cable is broken");
    const std::size_t size = std::min<std::size_t>(out.size(), bytes_.size() - offset);
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), size, out.begin());
    return size;
  }
  ReadHints hints(std::uint64_t, std::uint64_t) override { return {4, 1 << 20}; }
  std::optional<std::uint64_t> size() const override { return bytes_.size(); }
  const std::string& label() const override { return label_; }

  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  const std::vector<std::byte> bytes_;
  const std::string label_ = "the file";
  std::atomic<int> reads_ = 0;
};

std::vector<Span> some_spans(std::minstd_rand& random) {
  std::vector<Span> spans;
  std::uint64_t unit = random() % kUnits;
  for (std::uint64_t i = random() % 12; i > 0 && unit < kUnits; --i) {
    spans.push_back({unit * kUnit, (unit + 1) * kUnit});
    unit += 1 + (random() % 3) / 2;
  }
  return spans;
}

TEST(PrefetchCache, IsRightWhateverHappensAtTheSameTime) {
  const auto file = std::make_shared<FragileSource>(pattern(kUnits * kUnit));
  const auto cache = std::make_shared<PrefetchCache>(file, 20 * kUnit);
  std::atomic<int> from_memory = 0;
  const auto work = [&](unsigned seed) {
    std::minstd_rand random(seed + 1);
    for (int round = 0; round < 60; ++round) {
      Cancel cancel{Cancel::Unattended{}};
      const std::vector<Span> spans = some_spans(random);
      try {
        if (random() % 2 == 0) {
          Progress progress;
          std::thread canceller;
          if (random() % 4 == 0) canceller = std::thread([&] { cancel.request(); });
          try {
            cache->fetch(spans, progress, cancel);
          } catch (...) {
            if (canceller.joinable()) canceller.join();
            throw;
          }
          if (canceller.joinable()) canceller.join();
          continue;
        }
        std::shared_ptr<Source> source = cache->source_for(spans, cancel);
        if (source) {
          ++from_memory;
        } else {
          source = file;
        }
        for (const Span& span : spans) {
          // Also bytes beside those that were announced.
          const std::uint64_t begin = span.begin - std::min<std::uint64_t>(span.begin, 1000);
          const std::uint64_t end = std::min(span.end + 1000, kUnits * kUnit);
          std::vector<std::byte> one(end - begin - 50);
          std::vector<std::byte> rest(50);
          const std::array<Bytes, 2> pieces{Bytes(one), Bytes(rest)};
          source->read(begin, pieces, cancel);
          one.insert(one.end(), rest.begin(), rest.end());
          const auto expected = file->bytes().begin() + static_cast<std::ptrdiff_t>(begin);
          ASSERT_TRUE(std::equal(one.begin(), one.end(), expected));
          ASSERT_EQ(source->read_up_to(begin, one, cancel), one.size());
          ASSERT_TRUE(std::equal(one.begin(), one.end(), expected));
        }
      } catch (const Error& error) {
        ASSERT_TRUE(error.kind() == ErrorKind::Unavailable || error.kind() == ErrorKind::Cancelled)
            << error.what();
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 6; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(from_memory, 20);
  // No unit is left loading.
  Cancel cancel;
  const std::vector<Span> all = {{0, kUnits * kUnit}};
  cache->source_for(all, cancel);
  EXPECT_FALSE(cache->has_any());
}

TEST(PrefetchCache, ALargeUnitIsFetchedInSeveralReads) {
  const auto file = std::make_shared<FragileSource>(pattern(9 << 20));
  const auto cache = std::make_shared<PrefetchCache>(file, 9 << 20);
  Cancel cancel;
  Progress progress;
  const std::vector<Span> spans = {{7, 8 << 20}, {8 << 20, (8 << 20) + 100}};
  cache->fetch(spans, progress, cancel);
  EXPECT_EQ(progress.done, progress.total);
  const std::shared_ptr<Source> source = cache->source_for(spans, cancel);
  EXPECT_EQ(source->hints(0, 1).reads_in_flight, 0) << "all of it is in memory";
  std::vector<std::byte> found((8 << 20) + 93);
  const Bytes piece(found);
  source->read(7, {&piece, 1}, cancel);
  EXPECT_TRUE(std::equal(found.begin(), found.end(), file->bytes().begin() + 7));
}

// A file that is read one unit at a time. The first read waits until it is told to end, and then
// fails if the test says so.
class HeldSource final : public Source {
 public:
  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel&) override {
    std::unique_lock lock(mutex_);
    units_.push_back(offset / kUnit);
    changed_.notify_all();
    changed_.wait(lock, [&] { return !is_held_; });
    if (std::exchange(fails_, false)) throw Error(ErrorKind::Unavailable, "the cable is broken");
    std::ranges::fill(out, static_cast<std::byte>(offset / kUnit));
    return out.size();
  }
  ReadHints hints(std::uint64_t, std::uint64_t) override {
    ReadHints hints;
    hints.reads_in_flight = 1;
    hints.read_cost = 0;
    return hints;
  }
  std::optional<std::uint64_t> size() const override { return kUnits * kUnit; }
  const std::string& label() const override { return label_; }

  void hold_and_fail() {
    const std::lock_guard lock(mutex_);
    is_held_ = fails_ = true;
  }
  void wait_for_a_read() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !units_.empty(); });
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    is_held_ = false;
    changed_.notify_all();
  }
  // Returns the numbers of the units that were read, in order.
  std::vector<std::uint64_t> units() {
    const std::lock_guard lock(mutex_);
    return units_;
  }

 private:
  const std::string label_ = "the file";
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_held_ = false;
  bool fails_ = false;
  std::vector<std::uint64_t> units_;
};

// Returns one byte less than these units each, so that each is read on its own.
std::vector<Span> units(const std::vector<std::uint64_t>& numbers) {
  std::vector<Span> spans;
  for (const std::uint64_t number : numbers) {
    spans.push_back({number * kUnit, (number + 1) * kUnit - 1});
  }
  return spans;
}

class PrefetchCacheTest : public testing::Test {
 protected:
  void fetch(const std::vector<std::uint64_t>& numbers) {
    Cancel cancel;
    Progress progress;
    cache_->fetch(units(numbers), progress, cancel);
  }
  std::shared_ptr<Source> load(std::uint64_t number) {
    Cancel cancel;
    return cache_->source_for(units({number}), cancel);
  }

  const std::shared_ptr<HeldSource> file_ = std::make_shared<HeldSource>();
  const std::shared_ptr<PrefetchCache> cache_ =
      std::make_shared<PrefetchCache>(file_, 3 * (kUnit - 1));
};

// Its second unit has not been read yet when the first one fails, and another fetch waits for it.
TEST_F(PrefetchCacheTest, AFetchThatFailsLeavesNothingToWaitFor) {
  file_->hold_and_fail();
  std::thread failing([&] { EXPECT_EQ(kind_of([&] { fetch({0, 1}); }), ErrorKind::Unavailable); });
  file_->wait_for_a_read();
  {
    const OnceItWaits then([&] { file_->let_go(); });
    fetch({1});
  }
  failing.join();
  EXPECT_EQ(file_->units(), (std::vector<std::uint64_t>{0, 1}));
  EXPECT_NE(load(1), nullptr) << "the fetch that waited has read it";
  EXPECT_FALSE(cache_->has_any());
}

// There is room only when a load ends, because all that the cache holds is the fetch's own.
TEST_F(PrefetchCacheTest, AFetchEvictsNothingOfItsOwn) {
  fetch({0, 1});
  std::shared_ptr<Source> loading = load(1);
  ASSERT_NE(loading, nullptr);
  {
    std::atomic<bool> waited = false;
    const OnceItWaits then([&] {
      waited = true;
      loading.reset();
    });
    fetch({0, 2, 3});
    EXPECT_TRUE(waited);
  }
  EXPECT_EQ(file_->units(), (std::vector<std::uint64_t>{0, 1, 2, 3})) << "each once";
  EXPECT_NE(load(0), nullptr);
}

TEST_F(PrefetchCacheTest, AFetchEvictsTheOldestOfOthersAndNoMoreThanItMust) {
  fetch({0, 1});
  fetch({2});
  fetch({0});
  fetch({3});
  EXPECT_EQ(load(1), nullptr) << "the one that was asked for longest ago";
  for (const std::uint64_t number : {0, 2, 3}) EXPECT_NE(load(number), nullptr) << number;
  fetch({4, 5, 6});
  EXPECT_EQ(kind_of([&] { fetch({4, 5, 6, 7}); }), ErrorKind::InvalidArgument);
  EXPECT_NE(load(4), nullptr);
}

}  // namespace
}  // namespace tensorizer
