// A limit of the bytes per second that connections transfer together.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "base/world.h"
#include "io/seconds.h"

namespace tensorizer {

// Thread-safe. A transfer counts when it is over, and the next one waits for its time: so no bytes
// are held back, and the rate is right on average.
class Bandwidth {
 public:
  // 0 is no limit.
  explicit Bandwidth(std::uint64_t bytes_per_second) noexcept : rate_(bytes_per_second) {}

  void count(std::uint64_t bytes) noexcept {
    if (rate_ == 0) return;
    const Clock::duration time = seconds(static_cast<double>(bytes) / static_cast<double>(rate_));
    const std::lock_guard lock(mutex_);
    next_ = std::max(next_, Clock::now() - kCatchUp) + time;
  }

  // Returns how long to wait before the next transfer, or zero.
  Clock::duration wait() noexcept {
    if (rate_ == 0) return Clock::duration::zero();
    const std::lock_guard lock(mutex_);
    return std::max(next_ - Clock::now(), Clock::duration::zero());
  }

 private:
  // The unused time that is made up for: waits end later than they should.
  static constexpr std::chrono::milliseconds kCatchUp{200};

  const std::uint64_t rate_;
  std::mutex mutex_;
  Clock::time_point next_;
};

}  // namespace tensorizer
