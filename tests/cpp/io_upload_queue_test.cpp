// Uploads of parts: all parts are sent, the first ones first, and never too much at once.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "base/error.h"
#include "io/upload/upload_queue.h"

namespace tensorizer {
namespace {

UploadPart part_of(std::uint64_t number, std::size_t copied = 0) {
  UploadPart part(number);
  if (copied > 0) part.copies.emplace_back(copied);
  return part;
}

// Records what was sent, and how many sends ran at once.
struct Sent {
  void operator()(const UploadPart& part, Cancel& cancel) {
    const int now = ++running;
    int before = most.load();
    while (now > before && !most.compare_exchange_weak(before, now)) {
    }
    while (held) {
      cancel.check();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    {
      const std::lock_guard lock(mutex);
      numbers.push_back(part.number);
      changed.notify_all();
    }
    --running;
  }
  std::vector<std::uint64_t> so_far() {
    const std::lock_guard lock(mutex);
    return numbers;
  }
  void wait_for(std::size_t count) {
    std::unique_lock lock(mutex);
    EXPECT_TRUE(
        changed.wait_for(lock, std::chrono::minutes(1), [&] { return numbers.size() >= count; }));
  }

  std::atomic<int> running{0};
  std::atomic<int> most{0};
  std::atomic<bool> held{false};
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::uint64_t> numbers;
};

UploadQueue::Send into(Sent& sent) {
  return [&sent](const UploadPart& part, Cancel& cancel) { sent(part, cancel); };
}

TEST(UploadQueue, SendsAllWithSoManyAtOnce) {
  Sent sent;
  Cancel cancel;
  sent.held = true;
  UploadQueue queue({4, {}, 1000}, into(sent));
  for (std::uint64_t number = 0; number < 40; ++number) queue.add(part_of(number, 10), cancel);
  while (sent.running < 4) std::this_thread::yield();
  sent.held = false;
  queue.finish(cancel);
  std::vector<std::uint64_t> numbers = sent.so_far();
  std::sort(numbers.begin(), numbers.end());
  EXPECT_EQ(numbers.size(), 40U);
  EXPECT_EQ(std::unique(numbers.begin(), numbers.end()), numbers.end());
  EXPECT_EQ(sent.most, 4);
}

TEST(UploadQueue, RunsNotFarAheadOfAMissingPart) {
  Sent sent;
  Cancel cancel;
  UploadQueue queue({4, 3, 1000}, into(sent));
  for (std::uint64_t number = 9; number > 0; --number) queue.add(part_of(number), cancel);
  sent.wait_for(3);
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

TEST(UploadQueue, SendsOneAtATimeOnTheThreadThatAdds) {
  Cancel cancel;
  std::vector<std::uint64_t> numbers;
  UploadQueue queue({1, 1, 1000},
                    [&, caller = std::this_thread::get_id()](const UploadPart& part, Cancel& own) {
                      EXPECT_EQ(std::this_thread::get_id(), caller);
                      EXPECT_EQ(&own, &cancel) << "a cancel of the job ends it";
                      numbers.push_back(part.number);
                    });
  for (const std::uint64_t number : {1, 2, 0, 5}) queue.add(part_of(number), cancel);
  EXPECT_EQ(numbers, (std::vector<std::uint64_t>{1, 0, 2}));
  queue.finish(cancel);
  EXPECT_EQ(numbers.back(), 5U);
}

// A part is sent out of turn if its send would otherwise wait for a part that only the blocked
// thread can add.
TEST(UploadQueue, KeepsFewCopiesAndNeverWaitsForever) {
  Sent sent;
  Cancel cancel;
  UploadQueue queue({2, 3, 25}, into(sent));
  sent.held = true;
  std::uint64_t number = 10;
  for (; number < 13; ++number) queue.add(part_of(number, 10), cancel);
  Cancel cancelled;
  cancelled.request();
  EXPECT_THROW(queue.add(part_of(number, 10), cancelled), Error) << "it does not wait";
  sent.held = false;
  for (; number < 20; ++number) queue.add(part_of(number, 10), cancel);
  queue.finish(cancel);
  EXPECT_EQ(sent.so_far().size(), 10U);
}

TEST(UploadQueue, HandsOnWhatASendThrows) {
  Cancel cancel;
  UploadQueue queue({1, {}, 1000}, [&](const UploadPart& part, Cancel&) {
    if (part.number == 3) throw Error(ErrorKind::Unavailable, "no");
    EXPECT_LT(part.number, 3U);
  });
  EXPECT_THROW(
      {
        for (const std::uint64_t number : {3, 4, 5}) queue.add(part_of(number), cancel);
        queue.finish(cancel);
      },
      Error);
  EXPECT_THROW(queue.add(part_of(6), cancel), Error);
  EXPECT_THROW(queue.finish(cancel), Error);
}

TEST(UploadQueue, EndsAfterACancelAndWhenItGoes) {
  Sent sent;
  sent.held = true;
  {
    Cancel cancel;
    UploadQueue queue({2, {}, 1000}, into(sent));
    for (std::uint64_t number = 0; number < 5; ++number) queue.add(part_of(number), cancel);
    cancel.request();
    EXPECT_THROW(queue.finish(cancel), Error);
  }
  EXPECT_TRUE(sent.so_far().empty());
}

}  // namespace
}  // namespace tensorizer
