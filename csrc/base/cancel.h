// Cancellation of a running job.
//
// A Cancel is created on the thread that called the library and shared with the job's workers. Any
// thread may call request(). Code that may run for more than a few milliseconds calls check() in
// between, and code that waits calls check() at least every kPollInterval.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "base/world.h"
#include "tensorizer_ops/hooks.h"

namespace tensorizer {

inline constexpr std::chrono::milliseconds kPollInterval{50};

class Cancel {
 public:
  Cancel() noexcept : Cancel(nullptr) {}
  // Calls `hook` instead of the interrupt hook of the process, for a host that shares the process
  // with another one.
  explicit Cancel(InterruptHook hook) noexcept : owner_(std::this_thread::get_id()), hook_(hook) {}
  // For the cleanup after a job was stopped: never calls a hook, so that no signal interrupts it.
  struct Unattended {};
  explicit Cancel(Unattended) noexcept {}
  Cancel(const Cancel&) = delete;
  Cancel& operator=(const Cancel&) = delete;

  void request() noexcept { requested_.store(true, std::memory_order_relaxed); }
  bool requested() const noexcept { return requested_.load(std::memory_order_relaxed); }

  // Throws Error(Cancelled) after request(). On the thread that created this, also calls the
  // interrupt hook (tensorizer_ops/hooks.h) at most every kPollInterval, and throws what it throws.
  void check();

  // Blocks until `changed` is notified, or kPollInterval has passed. Then calls check() while the
  // lock is unlocked, because the hook runs code of the host, and locks it again.
  void wait(std::condition_variable& changed, std::unique_lock<std::mutex>& lock);

  // Blocks for this time, and calls check() at least every kPollInterval.
  void sleep(Clock::duration time);

 private:
  std::atomic<bool> requested_{false};
  const std::thread::id owner_;  // no thread for Unattended
  const InterruptHook hook_ = nullptr;
  // Only the owner touches this.
  Clock::time_point next_poll_ = Clock::now();
};

// For loops of very many short steps: checks at every 1024th step.
class Pace {
 public:
  explicit Pace(Cancel& cancel) noexcept : cancel_(cancel) {}
  void step() {
    if (++steps_ % 1024 == 0) cancel_.check();
  }

 private:
  Cancel& cancel_;
  std::uint32_t steps_ = 0;
};

}  // namespace tensorizer
