// How a running job learns that nobody wants its result any more.
//
// A Cancel is made by the thread that called into the library and shared with the job's workers.
// Anyone may request(); whatever may run for more than a few milliseconds calls check() in between,
// and whatever may wait calls check() at least every kPollInterval.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "tensorizer_ops/hooks.h"

namespace tensorizer {

inline constexpr std::chrono::milliseconds kPollInterval{50};

class Cancel {
 public:
  Cancel() noexcept : Cancel(nullptr) {}
  // Calls `hook` instead of the interrupt hook of the process, for a host that is not the only one.
  explicit Cancel(InterruptHook hook) noexcept : owner_(std::this_thread::get_id()), hook_(hook) {}
  // For what is to be done after a job has been stopped: nobody's signals end that.
  struct Unattended {};
  explicit Cancel(Unattended) noexcept {}
  Cancel(const Cancel&) = delete;
  Cancel& operator=(const Cancel&) = delete;

  void request() noexcept { requested_.store(true, std::memory_order_relaxed); }
  bool requested() const noexcept { return requested_.load(std::memory_order_relaxed); }

  // Throws Error(Cancelled) once requested. On the thread that made this, calls the interrupt hook
  // (tensorizer_ops/hooks.h) at most every kPollInterval, and throws what it throws.
  void check();

 private:
  std::atomic<bool> requested_{false};
  const std::thread::id owner_;  // of no thread where nobody attends
  const InterruptHook hook_ = nullptr;
  // Only the owner touches this.
  std::chrono::steady_clock::time_point next_poll_ = std::chrono::steady_clock::now();
};

// For loops of very many short steps: checks at each 1024th.
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
