// Calls that run when their host ends.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/calls.h"
#include "base/cancel.h"
#include "support.h"

namespace tensorizer {
namespace {

using namespace testing_support;
using std::chrono::milliseconds;

TEST(CallsTest, EndsThoseOfOtherThreads) {
  std::atomic<bool> inside{false};
  std::atomic<bool> ended{false};
  std::thread other([&] {
    const Call call;
    Cancel cancel;
    inside = true;
    EXPECT_EQ(kind_of([&] {
                for (;;) cancel.check();
              }),
              ErrorKind::Cancelled);
    Cancel cleanup{Cancel::Unattended{}};
    cleanup.check();
    ended = true;
  });
  while (!inside) std::this_thread::yield();
  const Call own;  // is not waited for
  end_calls(std::chrono::hours(1));
  EXPECT_TRUE(ended);
  other.join();

  Cancel cancel;
  cancel.check();
  const Call another;
  std::thread([&] {
    EXPECT_EQ(kind_of([] { const Call late; }), ErrorKind::Cancelled);
    cancel.check();  // a worker of the thread that goes on
  }).join();

  admit_calls();
  std::thread([] { const Call late; }).join();
}

TEST(CallsTest, WaitsNoLongerThanItMay) {
  std::atomic<bool> inside{false};
  std::atomic<bool> stop{false};
  std::thread other([&] {
    const Call call;
    inside = true;
    while (!stop) std::this_thread::yield();
  });
  while (!inside) std::this_thread::yield();
  end_calls(milliseconds(1));
  stop = true;
  other.join();
  admit_calls();
}

}  // namespace
}  // namespace tensorizer
