// Temporary errors, and the back-off before a retry.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/cancel.h"
#include "base/error.h"
#include "base/world.h"

namespace tensorizer {

// An error that a retry may fix: a broken connection, a busy server.
class TemporaryError : public Error {
 public:
  using Error::Error;
};

// A try that receives fewer bytes than this counts as one without progress.
inline constexpr std::uint64_t kSomeProgress = 64 << 10;

// Returns the shortest pause before the next try, when `count` tries in a row had made no progress
// before the last one. The pause is random, and less than twice as long.
std::chrono::milliseconds shortest_pause(int count) noexcept;

// Counts the retries of one operation on a server, and waits between them. Each wait throws within
// kPollInterval of a cancel.
class Tries {
 public:
  // `retries`: how many in a row may make no progress.
  explicit Tries(int retries) noexcept : retries_(retries) {}

  // Must be called for each failed try, with the number of bytes that it received.
  void count_progress(std::uint64_t brought) noexcept {
    if (brought >= kSomeProgress) count_ = 0;
  }
  bool are_used_up() const noexcept { return count_ >= retries_; }
  // Returns ", after 3 more tries" for messages; empty after the first try.
  std::string described() const;

  // Waits for the back-off, or for `least` if that is longer (the server asked for it), and counts
  // the next try. Returns false at once if the wait would end after the deadline.
  bool wait(Cancel& cancel, std::chrono::milliseconds least = {},
            std::optional<Clock::time_point> deadline = {});
  // Counts a next try that needs no wait, because the cause of the last failure is gone.
  void go_on_at_once() noexcept { ++all_; }

  // Handles a failed try: counts its progress and waits, or throws `error` as a permanent one if
  // the retries are used up.
  void failed(const TemporaryError& error, std::uint64_t brought, Cancel& cancel);

 private:
  const int retries_;
  int count_ = 0;  // in a row, without progress
  int all_ = 0;
};

}  // namespace tensorizer
