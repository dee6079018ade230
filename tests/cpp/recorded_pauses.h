// The pauses before retries, which pass at once while an object of this class exists.
#pragma once

#include <mutex>
#include <vector>

#include "io/retry.h"

namespace tensorizer::testing_support {

// Only one may exist at a time.
class RecordedPauses {
 public:
  RecordedPauses() {
    const std::lock_guard lock(mutex_);
    pauses_.clear();
    set_pause_hook([](std::chrono::milliseconds time, Cancel& cancel) {
      cancel.check();
      const std::lock_guard lock(mutex_);
      pauses_.push_back(time);
    });
  }
  ~RecordedPauses() { set_pause_hook(nullptr); }
  RecordedPauses(const RecordedPauses&) = delete;
  RecordedPauses& operator=(const RecordedPauses&) = delete;

  std::vector<std::chrono::milliseconds> so_far() const {
    const std::lock_guard lock(mutex_);
    return pauses_;
  }

 private:
  static inline std::mutex mutex_;
  static inline std::vector<std::chrono::milliseconds> pauses_;
};

}  // namespace tensorizer::testing_support
