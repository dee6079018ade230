// Threads that read the same shards of a signed file.
#include <future>
#include <latch>

#include "signed_files.h"

namespace tensorizer {
namespace {

using namespace testing_support;

// Counts the readers that wait: a Cancel of one calls this at its first check, and nothing but the
// wait for another reader checks.
std::atomic<int> waiting = 0;
thread_local bool is_counted = false;
void count_waiting() {
  if (!std::exchange(is_counted, true)) {
    ++waiting;
    waiting.notify_all();
  }
}
void await_waiting(int count) {
  for (int now = waiting; now < count; now = waiting) waiting.wait(now);
}

class SharedShardsTest : public SignedSourceTest {
 protected:
  SharedShardsTest() { waiting = 0; }

  // Lets a reader read some bytes of the second shard, on a thread of its own.
  std::future<std::string> reader(Source& source, std::uint64_t offset, std::size_t size) {
    return std::async(std::launch::async, [&source, offset, size] {
      is_counted = false;
      Cancel cancel(&count_waiting);
      std::string out(size, '\0');
      const Bytes piece = std::as_writable_bytes(std::span(out));
      source.read(offset, {&piece, 1}, cancel);
      return out;
    });
  }
};

TEST_F(SharedShardsTest, AShardIsFetchedOnce) {
  constexpr int kReaders = 5;
  const auto source = signed_as(text_);
  file_->before = [&](std::uint64_t offset, std::uint64_t, Cancel&) {
    if (offset == kShard) await_waiting(kReaders - 1);
  };
  std::vector<std::future<std::string>> readers;
  for (int i = 0; i < kReaders; ++i) {
    readers.push_back(reader(*source, kShard + 3 * static_cast<std::uint64_t>(i), 7));
  }
  for (int i = 0; i < kReaders; ++i) {
    EXPECT_EQ(readers[static_cast<std::size_t>(i)].get(),
              text_.substr(kShard + 3 * static_cast<std::size_t>(i), 7));
  }
  EXPECT_EQ(file_->times_read(), 1U);
}

TEST_F(SharedShardsTest, ReadersThatOverlapFetchEachShardOnce) {
  const auto source = signed_as(text_);
  std::latch both(2);
  file_->before = [&](std::uint64_t, std::uint64_t, Cancel&) { both.arrive_and_wait(); };
  // The first shard and a part of the second; parts of the second and the third.
  auto one = reader(*source, 5, kShard), other = reader(*source, kShard + 20, kShard);
  EXPECT_EQ(one.get(), text_.substr(5, kShard));
  EXPECT_EQ(other.get(), text_.substr(kShard + 20, kShard));
  EXPECT_EQ(file_->fetches(0), 1);
  EXPECT_EQ(file_->fetches(kShard), 1);
  EXPECT_EQ(file_->fetches(2 * kShard), 1);
}

TEST_F(SharedShardsTest, ReadersGoOnWhenTheOneThatFetchesFails) {
  constexpr int kReaders = 4;
  const auto source = signed_as(text_);
  std::atomic<int> fetches = 0;
  file_->before = [&](std::uint64_t, std::uint64_t, Cancel&) {
    if (fetches++ > 0) return;
    await_waiting(kReaders - 1);
    throw Error(ErrorKind::Unavailable, "away");
  };
  std::vector<std::future<std::string>> readers;
  for (int i = 0; i < kReaders; ++i) readers.push_back(reader(*source, kShard + 1, 7));
  int failed = 0;
  for (auto& each : readers) {
    try {
      EXPECT_EQ(each.get(), text_.substr(kShard + 1, 7));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Unavailable);
      ++failed;
    }
  }
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(fetches, 2);
}

TEST_F(SharedShardsTest, NobodyGetsAShardThatIsDamaged) {
  constexpr int kReaders = 4;
  const auto source = signed_as(text_);
  file_->text[kShard + 60] ^= 1;
  std::atomic<int> fetches = 0;
  file_->before = [&](std::uint64_t, std::uint64_t, Cancel&) {
    if (fetches++ == 0) await_waiting(kReaders - 1);
  };
  std::vector<std::future<std::string>> readers;
  for (int i = 0; i < kReaders; ++i) readers.push_back(reader(*source, kShard + 1, 7));
  for (auto& each : readers) {
    EXPECT_EQ(kind_of([&] { each.get(); }), ErrorKind::HashMismatch);
  }
  EXPECT_EQ(fetches, kReaders);
}

TEST_F(SharedShardsTest, AReaderThatIsCancelledHoldsNobodyUp) {
  const auto source = signed_as(text_);
  Cancel cancel;
  bool is_first = true;
  file_->before = [&](std::uint64_t, std::uint64_t, Cancel& of_read) {
    if (!std::exchange(is_first, false)) return;
    await_waiting(1);
    cancel.request();
    of_read.check();
  };
  std::binary_semaphore begun(0);
  std::jthread first([&] {
    std::byte byte{};
    const Bytes piece(&byte, 1);
    begun.release();
    EXPECT_EQ(kind_of([&] { source->read(kShard, {&piece, 1}, cancel); }), ErrorKind::Cancelled);
  });
  begun.acquire();
  while (file_->times_read() == 0) std::this_thread::yield();
  EXPECT_EQ(reader(*source, kShard + 1, 7).get(), text_.substr(kShard + 1, 7));
}

TEST_F(SharedShardsTest, AReaderThatWaitsIsCancelled) {
  const auto source = signed_as(text_);
  std::binary_semaphore ends(0);
  file_->before = [&](std::uint64_t, std::uint64_t, Cancel&) { ends.acquire(); };
  auto first = reader(*source, kShard, 7);
  while (file_->times_read() == 0) std::this_thread::yield();
  expect_cancelled_soon([&] { read(*source, kShard + 1, 7); });
  ends.release();
  EXPECT_EQ(first.get(), text_.substr(kShard, 7));
  EXPECT_EQ(file_->times_read(), 1U);
}

TEST_F(SharedShardsTest, ManyReadersGetSignedBytes) {
  const std::string text = text_pattern(40 * kShard + 9);
  file_->text = text;
  std::atomic<std::uint32_t> calls = 0;
  file_->before = [&](std::uint64_t, std::uint64_t, Cancel&) {
    if (++calls % 7 == 0) throw Error(ErrorKind::Unavailable, "away");
  };
  const auto source = signed_as(text);
  std::vector<std::jthread> threads;
  for (std::uint32_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      Dice dice(i + 1);
      Cancel cancel;
      for (int round = 0; round < 300; ++round) {
        const std::uint64_t offset = dice.below(text.size());
        std::string out(dice.below(std::min<std::uint64_t>(3 * kShard, text.size() - offset)),
                        '\0');
        const Bytes all = std::as_writable_bytes(std::span(out));
        const std::size_t cut = dice.below(out.size() + 1);
        const Bytes pieces[] = {all.first(cut), all.subspan(cut)};
        try {
          source->read(offset, pieces, cancel);
          EXPECT_EQ(out, text.substr(offset, out.size()));
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::Unavailable);
        }
      }
    });
  }
}

}  // namespace
}  // namespace tensorizer
