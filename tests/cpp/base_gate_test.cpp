// Entering a Gate while another call is inside: on the same thread, on a worker of that thread, on
// other threads and in a forked child; and whom a call may wait for.
#include "base/gate.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <string>

#include "base/error.h"
#include "engine/move/workers.h"
#include "tensorizer_ops/hooks.h"

namespace tensorizer {
namespace {

template <typename Call>
std::optional<std::string> error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return std::nullopt;
}

class GateTest : public testing::Test {
 protected:
  void enter(Cancel& cancel) { const Gate::Entry entry(gate_, calling_thread(), cancel); }

  Gate gate_{"it is in use"};
  Cancel cancel_;
};

TEST_F(GateTest, RefusesItsOwnThread) {
  {
    const Gate::Entry entry(gate_, calling_thread(), cancel_);
    EXPECT_TRUE(gate_.has(calling_thread()));
    EXPECT_EQ(error_of([&] { enter(cancel_); }), "tensorizer.InvalidArgument: it is in use");
    EXPECT_TRUE(gate_.has(calling_thread()));
  }
  EXPECT_FALSE(gate_.has(calling_thread()));
  enter(cancel_);
}

TEST_F(GateTest, RefusesThoseThatWorkForItsThread) {
  const Gate::Entry entry(gate_, calling_thread(), cancel_);
  std::atomic<int> refused = 0;
  std::atomic<int> begun = 0;
  run_workers(3, cancel_, [&] {
    // Waits until all workers run, so that at least one is certain to be another thread.
    for (++begun; begun < 3;) std::this_thread::yield();
    if (error_of([&] { enter(cancel_); })) ++refused;
  });
  EXPECT_EQ(refused, 3);
}

TEST_F(GateTest, IsEmptyInAForkedChild) {
  const Gate::Entry entry(gate_, calling_thread(), cancel_);
  const pid_t child = fork();
  if (child == 0) _exit(error_of([&] { enter(cancel_); }) ? 1 : 0);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// The other thread may itself wait for the call that the hook has interrupted.
TEST_F(GateTest, HoldsUpNobodyButCallsOfHooks) {
  Cancel job;
  Cancel others;
  std::optional<Gate::Entry> entry;
  std::thread([&] { entry.emplace(gate_, calling_thread(), others); }).join();
  EXPECT_FALSE(gate_.holds_up(job));
  const WorksFor in_hook({calling_thread(), true});
  EXPECT_TRUE(gate_.holds_up(job));
  EXPECT_FALSE(gate_.holds_up(others));
  run_workers(2, job, [&] { EXPECT_TRUE(gate_.holds_up(job)); });
}

TEST_F(GateTest, LetsOtherThreadsInOneAfterAnother) {
  int inside = 0;
  int most = 0;
  const auto work = [&] {
    Cancel cancel;
    for (int i = 0; i < 200; ++i) {
      const Gate::Entry entry(gate_, calling_thread(), cancel);
      most = std::max(most, ++inside);
      std::this_thread::yield();
      --inside;
    }
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(most, 1);
}

TEST_F(GateTest, LetsWhoWaitsBeCancelled) {
  const Gate::Entry entry(gate_, calling_thread(), cancel_);
  Cancel waiting;
  std::optional<std::string> error;
  std::thread other([&] { error = error_of([&] { enter(waiting); }); });
  waiting.request();
  other.join();
  EXPECT_EQ(error, "tensorizer.Cancelled: the job was cancelled");
}

// The hook is where the host runs signal handlers.
TEST_F(GateTest, AsksTheHostWhileItWaits) {
  static std::atomic<bool> asked;
  asked = false;
  set_interrupt_hook([] { asked = true; });
  std::atomic<bool> inside = false;
  std::thread other([&] {
    Cancel cancel;
    const Gate::Entry entry(gate_, calling_thread(), cancel);
    inside = true;
    while (!asked) std::this_thread::yield();
  });
  while (!inside) std::this_thread::yield();
  Cancel waiting;
  enter(waiting);
  other.join();
  set_interrupt_hook(nullptr);
}

TEST_F(GateTest, IsOpenAfterAnException) {
  EXPECT_THROW(
      {
        const Gate::Entry entry(gate_, calling_thread(), cancel_);
        throw 42;
      },
      int);
  enter(cancel_);
}

}  // namespace
}  // namespace tensorizer
