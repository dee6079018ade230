// What may go better another time, and when to try it again.
#pragma once

#include <chrono>
#include <cstdint>
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

// The tries at one thing that is asked of a server.
class Tries {
 public:
  // `retries`: how many in a row may bring nothing.
  explicit Tries(int retries) noexcept : retries_(retries) {}

  // After a try that failed, and brought that many bytes: returns when it is time for the next one,
  // or throws what kept this one from succeeding.
  void failed(const TemporaryError& error, std::uint64_t brought, Cancel& cancel);

 private:
  const int retries_;
  int count_ = 0;  // in a row, without progress
  int all_ = 0;
};

}  // namespace tensorizer
