// Worlds that several tests use.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <vector>

#include "base/world.h"

namespace tensorizer::testing_support {

// Sleeps pass at once, and are recorded.
class RecordedPauses final : public World {
 public:
  Clock::time_point now() noexcept override { return World::now() + slept_.load(); }
  void sleep_for(Clock::duration time) override {
    const std::lock_guard lock(mutex_);
    pauses_.push_back(std::chrono::duration_cast<std::chrono::milliseconds>(time));
    slept_ = slept_.load() + time;
  }
  std::vector<std::chrono::milliseconds> so_far() const {
    const std::lock_guard lock(mutex_);
    return pauses_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::chrono::milliseconds> pauses_;
  std::atomic<Clock::duration> slept_{Clock::duration::zero()};
};

}  // namespace tensorizer::testing_support
