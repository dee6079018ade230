// Parts on their way up: all of them, the first ones first, and never too much at once.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "base/error.h"
#include "io/upload_queue.h"

namespace tensorizer {
namespace {

using std::chrono_literals::operator""ms;

UploadPart part_of(std::uint64_t number, std::size_t copied = 0) {
  UploadPart part(number);
  if (copied > 0) part.copies.emplace_back(copied);
  return part;
}

// What was sent, and how many sends ran at once.
struct Sent {
  void operator()(const UploadPart& part, Cancel& cancel) {
    const int now = ++running;
    int before = most.load();
    while (now > before && !most.compare_exchange_weak(before, now)) {
    }
    while (held) {
      cancel.check();
      std::this_thread::sleep_for(1ms);
    }
    std::this_thread::sleep_for(2ms);
    {
      const std::lock_guard lock(mutex);
      numbers.push_back(part.number);
    }
    --running;
  }
  std::vector<std::uint64_t> so_far() {
    const std::lock_guard lock(mutex);
    return numbers;
  }

  std::atomic<int> running{0};
  std::atomic<int> most{0};
  std::atomic<bool> held{false};
  std::mutex mutex;
  std::vector<std::uint64_t> numbers;
};

UploadQueue::Send into(Sent& sent) {
  return [&sent](const UploadPart& part, Cancel& cancel) { sent(part, cancel); };
}

TEST(UploadQueue, SendsAllWithSoManyAtOnce) {
  Sent sent;
  Cancel cancel;
  UploadQueue queue({4, {}, 1000}, into(sent));
  for (std::uint64_t number = 0; number < 40; ++number) queue.add(part_of(number, 10), cancel);
  queue.finish(cancel);
  std::vector<std::uint64_t> numbers = sent.so_far();
  std::sort(numbers.begin(), numbers.end());
  EXPECT_EQ(numbers.size(), 40U);
  EXPECT_EQ(std::unique(numbers.begin(), numbers.end()), numbers.end());
  EXPECT_GT(sent.most, 1);
  EXPECT_LE(sent.most, 4);
}

TEST(UploadQueue, RunsNotFarAheadOfAMissingPart) {
  Sent sent;
  Cancel cancel;
  UploadQueue queue({4, 3, 1000}, into(sent));
  for (std::uint64_t number = 9; number > 0; --number) queue.add(part_of(number), cancel);
  std::this_thread::sleep_for(100ms);
  std::vector<std::uint64_t> early = sent.so_far();
  std::sort(early.begin(), early.end());
  EXPECT_EQ(early, (std::vector<std::uint64_t>{1, 2, 3}));
  queue.add(part_of(0), cancel);
  queue.finish(cancel);
  EXPECT_EQ(sent.so_far().size(), 10U);
}

TEST(UploadQueue, NeedsNoFirstPartInTheEnd) {
  Sent sent;
  Cancel cancel;
  UploadQueue queue({2, 3, 1000}, into(sent));
  queue.add(part_of(50), cancel);
  queue.finish(cancel);
  EXPECT_EQ(sent.so_far(), std::vector<std::uint64_t>{50});
}

// What would wait for a part that only the waiting one can bring is sent out of turn.
TEST(UploadQueue, KeepsFewCopiesAndNeverWaitsForever) {
  Sent sent;
  Cancel cancel;
  UploadQueue queue({1, 3, 25}, into(sent));
  sent.held = true;
  std::atomic<int> added{0};
  std::thread adds([&] {
    for (std::uint64_t number = 10; number < 20; ++number) {
      queue.add(part_of(number, 10), cancel);
      ++added;
    }
  });
  std::this_thread::sleep_for(150ms);
  EXPECT_EQ(added, 3);
  sent.held = false;
  adds.join();
  queue.finish(cancel);
  EXPECT_EQ(sent.so_far().size(), 10U);
}

TEST(UploadQueue, HandsOnWhatASendThrows) {
  Cancel cancel;
  std::atomic<int> sends{0};
  UploadQueue queue({2, {}, 1000}, [&](const UploadPart& part, Cancel&) {
    ++sends;
    if (part.number == 3) throw Error(ErrorKind::Unavailable, "no");
  });
  EXPECT_THROW(
      {
        for (std::uint64_t number = 0; number < 1000; ++number) {
          queue.add(part_of(number), cancel);
          std::this_thread::sleep_for(1ms);
        }
        queue.finish(cancel);
      },
      Error);
  EXPECT_LT(sends, 1000);
  EXPECT_THROW(queue.finish(cancel), Error);
}

TEST(UploadQueue, EndsSoonAfterACancelAndWhenItGoes) {
  Sent sent;
  sent.held = true;
  const auto start = std::chrono::steady_clock::now();
  {
    Cancel cancel;
    UploadQueue queue({2, {}, 1000}, into(sent));
    for (std::uint64_t number = 0; number < 5; ++number) queue.add(part_of(number), cancel);
    cancel.request();
    EXPECT_THROW(queue.finish(cancel), Error);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, 1000ms);
  EXPECT_TRUE(sent.so_far().empty());
}

}  // namespace
}  // namespace tensorizer
