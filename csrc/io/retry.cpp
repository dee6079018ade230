#include "io/retry.h"

#include <algorithm>
#include <random>
#include <thread>

namespace tensorizer {

namespace {

constexpr std::chrono::milliseconds kFirstPause{50};
constexpr std::chrono::milliseconds kLongestPause{10000};

}  // namespace

std::chrono::milliseconds pause_after_tries(int count) {
  static thread_local std::minstd_rand random{std::random_device{}()};
  const std::chrono::milliseconds pause =
      std::min(kFirstPause * (1 << std::min(count, 10)), kLongestPause);
  return pause + std::chrono::milliseconds(random() % static_cast<unsigned>(pause.count()));
}

void sleep_unless_cancelled(std::chrono::milliseconds time, Cancel& cancel) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + time;
  while (Clock::now() < end) {
    cancel.check();
    std::this_thread::sleep_for(std::min<Clock::duration>(kPollInterval, end - Clock::now()));
  }
}

void Tries::failed(const TemporaryError& error, std::uint64_t brought, Cancel& cancel) {
  if (brought >= kSomeProgress) count_ = 0;
  if (count_ >= retries_) {
    const std::string tries = all_ > 0 ? ", after " + std::to_string(all_) + " more tries" : "";
    throw Error(error.kind(), std::string(error.message()) + tries, error.system_errno(),
                error.path());
  }
  sleep_unless_cancelled(pause_after_tries(count_), cancel);
  ++count_;
  ++all_;
}

}  // namespace tensorizer
