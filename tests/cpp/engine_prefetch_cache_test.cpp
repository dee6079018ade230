// Loads, fetches, cancels and failures of a PrefetchCache at the same time, under the sanitizers.
#include "engine/prefetch_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "base/error.h"
#include "support.h"

namespace tensorizer {
namespace {

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

std::vector<PrefetchCache::Span> some_spans(std::minstd_rand& random) {
  std::vector<PrefetchCache::Span> spans;
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
      const std::vector<PrefetchCache::Span> spans = some_spans(random);
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
        for (const PrefetchCache::Span& span : spans) {
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
  const std::vector<PrefetchCache::Span> all = {{0, kUnits * kUnit}};
  cache->source_for(all, cancel);
  EXPECT_FALSE(cache->has_any());
}

TEST(PrefetchCache, ALargeUnitIsFetchedInSeveralReads) {
  const auto file = std::make_shared<FragileSource>(pattern(9 << 20));
  const auto cache = std::make_shared<PrefetchCache>(file, 9 << 20);
  Cancel cancel;
  Progress progress;
  const std::vector<PrefetchCache::Span> spans = {{7, 8 << 20}, {8 << 20, (8 << 20) + 100}};
  cache->fetch(spans, progress, cancel);
  EXPECT_EQ(progress.done, progress.total);
  const std::shared_ptr<Source> source = cache->source_for(spans, cancel);
  EXPECT_EQ(source->hints(0, 1).reads_in_flight, 0) << "all of it is in memory";
  std::vector<std::byte> found((8 << 20) + 93);
  const Bytes piece(found);
  source->read(7, {&piece, 1}, cancel);
  EXPECT_TRUE(std::equal(found.begin(), found.end(), file->bytes().begin() + 7));
}

}  // namespace
}  // namespace tensorizer
