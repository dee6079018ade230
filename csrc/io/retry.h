// What may go better another time, and when to try it again.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/cancel.h"
#include "base/error.h"

namespace tensorizer {

// An error that another try may not meet: a connection that broke, a server that is busy.
class TemporaryError : public Error {
 public:
  using Error::Error;
};

// A try that brings less than this is counted as one that failed.
inline constexpr std::uint64_t kSomeProgress = 64 << 10;

// The pause before the next try, after `count` in a row that brought nothing before this one:
// longer each time, and another one for each of many that failed at once.
std::chrono::milliseconds pause_after_tries(int count);

// Ends within kPollInterval of a cancel.
void sleep_unless_cancelled(std::chrono::milliseconds time, Cancel& cancel);

// Counts the tries at one thing that is asked of a server, and waits between them.
class Tries {
 public:
  using Clock = std::chrono::steady_clock;

  // `retries`: how many in a row may bring nothing.
  explicit Tries(int retries) noexcept : retries_(retries) {}

  // Call for each try that failed, with the bytes that it brought.
  void count_progress(std::uint64_t brought) noexcept {
    if (brought >= kSomeProgress) count_ = 0;
  }
  bool are_used_up() const noexcept { return count_ >= retries_; }
  // ", after 3 more tries", or nothing after the first.
  std::string described() const;

  // Waits until it is time for the next try, for `least` if the server asked for that, and until
  // the deadline at most.
  void wait(Cancel& cancel, std::chrono::milliseconds least = {},
            std::optional<Clock::time_point> deadline = {});
  // Counts a next try that needs no wait, because what kept the last one from succeeding is gone.
  void go_on_at_once() noexcept { ++all_; }

  // All of it, after a try that failed: waits, or throws what kept it from succeeding.
  void failed(const TemporaryError& error, std::uint64_t brought, Cancel& cancel);

 private:
  const int retries_;
  int count_ = 0;  // in a row, without progress
  int all_ = 0;
};

}  // namespace tensorizer
