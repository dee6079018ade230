// Detects a server that still responds but is too slow to wait for.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/world.h"

namespace tensorizer {

// Watches one wait for a server. A rate below 1024 bytes per second for all of the patience is a
// stall. The patience starts again whenever the rate has been higher for a while.
class StallWatch {
 public:
  // `moved`: the bytes sent and received before this wait.
  StallWatch(double patience_seconds, std::uint64_t moved,
             Clock::time_point now = Clock::now()) noexcept
      : patience_(patience_seconds), since_(now), before_(moved) {}

  // Returns the seconds since the patience started.
  double waited(Clock::time_point now = Clock::now()) const noexcept {
    return std::chrono::duration<double>(now - since_).count();
  }
  bool is_over() const noexcept { return waited() >= patience_; }

  // `moved`: the bytes sent and received by now.
  bool has_stalled(std::uint64_t moved, Clock::time_point now = Clock::now()) noexcept {
    constexpr double kFloorPerSecond = 1024;
    const double seconds = waited(now);
    if (static_cast<double>(moved - before_) < kFloorPerSecond * seconds) {
      return seconds >= patience_;
    }
    if (seconds >= std::min(1.0, patience_ / 4)) {
      since_ = now;
      before_ = moved;
    }
    return false;
  }

 private:
  double patience_;
  Clock::time_point since_;
  std::uint64_t before_;
};

}  // namespace tensorizer
