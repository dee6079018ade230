// Worlds of tests: the real one but for what a test changes. Only one may exist at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "base/world.h"

namespace tensorizer::testing_support {

class NearlyRealWorld : public World {
 public:
  NearlyRealWorld() { set_world(this); }
  ~NearlyRealWorld() override { set_world(nullptr); }
  NearlyRealWorld(const NearlyRealWorld&) = delete;
  NearlyRealWorld& operator=(const NearlyRealWorld&) = delete;

  Clock::time_point now() noexcept override {
    return Clock::time_point(std::chrono::steady_clock::now().time_since_epoch());
  }
  WallClock::time_point date() noexcept override { return std::chrono::system_clock::now(); }
  std::uint32_t random_number() override { return std::random_device()(); }
  void sleep_for(Clock::duration time) override { std::this_thread::sleep_for(time); }
  bool wait_for_server(Clock::duration) override { return false; }
  const char* server() noexcept override { return nullptr; }
};

// Sleeps pass at once, and are recorded.
class RecordedPauses final : public NearlyRealWorld {
 public:
  Clock::time_point now() noexcept override { return NearlyRealWorld::now() + slept_.load(); }
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
