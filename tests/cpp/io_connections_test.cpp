// Shared by the connections of all protocols: stall detection, idle connections, retries.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>

#include "io/bandwidth.h"
#include "io/idle_pool.h"
#include "io/per_process.h"
#include "io/retry.h"
#include "io/stall.h"

namespace tensorizer {
namespace {

using namespace std::chrono_literals;

TEST(Bandwidth, IsThatOfAllTransfersTogether) {
  using std::chrono::milliseconds;
  Bandwidth bandwidth(1'000'000);
  EXPECT_EQ(bandwidth.wait(), milliseconds(0));
  for (int i = 0; i < 10; ++i) bandwidth.count(100'000);
  // Up to 200 ms of what went before are made up for.
  EXPECT_GT(bandwidth.wait(), milliseconds(500));
  EXPECT_LE(bandwidth.wait(), milliseconds(1000));
  Bandwidth unlimited(0);
  unlimited.count(std::uint64_t{1} << 60);
  EXPECT_EQ(unlimited.wait(), milliseconds(0));
}

TEST(StallWatch, EndsWhereNextToNothingMoves) {
  StallWatch watch(0.1, 1000);
  EXPECT_FALSE(watch.has_stalled(1000));
  std::this_thread::sleep_for(120ms);
  EXPECT_TRUE(watch.has_stalled(1000 + 50)) << "fewer than 1024 bytes per second";
}

TEST(StallWatch, BeginsAnewWhereBytesFlow) {
  StallWatch watch(0.1, 0);
  std::this_thread::sleep_for(150ms);
  EXPECT_FALSE(watch.has_stalled(1 << 20));
  EXPECT_LT(watch.waited(), 0.1);
  std::this_thread::sleep_for(120ms);
  EXPECT_TRUE(watch.has_stalled(1 << 20)) << "what came before does not count again";
}

struct Probe {
  explicit Probe(int& closed) : closed(closed) {}
  ~Probe() { ++closed; }
  int& closed;
};

TEST(IdlePool, GivesBackWhatItGot) {
  int closed = 0;
  IdlePool<Probe> pool;
  EXPECT_EQ(pool.take(), nullptr);
  auto probe = std::make_unique<Probe>(closed);
  Probe* const same = probe.get();
  pool.give_back(std::move(probe));
  probe = pool.take();
  EXPECT_EQ(probe.get(), same);
  pool.give_back(std::move(probe));
  pool.clear();
  EXPECT_EQ(closed, 1);
}

// Runs `work` in a child of fork(), and returns what it returns.
int in_a_child(const std::function<int()>& work) {
  const pid_t child = fork();
  if (child == 0) _exit(work());
  int status = -1;
  waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}

TEST(IdlePool, GivesNoConnectionsOfItsParent) {
  int closed = 0;
  IdlePool<Probe> pool;
  pool.give_back(std::make_unique<Probe>(closed));
  const auto use = [&] {
    if (pool.take() != nullptr) return 1;
    pool.give_back(std::make_unique<Probe>(closed));
    return pool.take() != nullptr ? 0 : 2;
  };
  EXPECT_EQ(in_a_child(use), 0);
  EXPECT_NE(pool.take(), nullptr);
}

TEST(PerProcess, HasAnObjectForEachProcess) {
  PerProcess<int> shared;
  *shared.get() = 7;
  EXPECT_EQ(in_a_child([&] {
              const int before = *shared.get();
              *shared.get() = 5;
              return before + *shared.get();
            }),
            5);
  EXPECT_EQ(*shared.get(), 7);
}

TEST(Tries, AreUsedUpWithoutProgress) {
  Cancel cancel;
  Tries tries(1);
  const TemporaryError error(ErrorKind::Unavailable, "broken");
  tries.failed(error, 0, cancel);
  tries.failed(error, kSomeProgress, cancel);
  tries.go_on_at_once();
  EXPECT_EQ(tries.described(), ", after 3 more tries");
  EXPECT_THROW(tries.failed(error, kSomeProgress - 1, cancel), Error);
}

TEST(Tries, DoNotWaitPastADeadline) {
  Cancel cancel;
  Tries tries(0);
  const auto begin = Clock::now();
  EXPECT_FALSE(tries.wait(cancel, {}, begin + 10ms)) << "the first back-off takes 50 ms or more";
  EXPECT_EQ(tries.described(), "");
  EXPECT_TRUE(tries.wait(cancel, {}, begin + 60s));
  EXPECT_GE(Clock::now() - begin, 50ms);
  EXPECT_EQ(tries.described(), ", after 1 more try");
}

}  // namespace
}  // namespace tensorizer
