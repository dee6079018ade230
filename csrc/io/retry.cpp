#include "io/retry.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

namespace tensorizer {

namespace {

constexpr std::chrono::milliseconds kFirstPause{50};
constexpr std::chrono::milliseconds kLongestPause{10000};

// Random, so that callers that failed at the same moment do not retry at the same moment.
std::chrono::milliseconds back_off(int count) {
  static thread_local std::minstd_rand random{std::random_device{}()};
  const std::chrono::milliseconds pause = shortest_pause(count);
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

std::atomic<PauseHook> pause_hook{&sleep_unless_cancelled};

}  // namespace

std::chrono::milliseconds shortest_pause(int count) noexcept {
  std::chrono::milliseconds pause = kFirstPause;
  for (; count > 0 && pause < kLongestPause; --count) pause *= 2;
  return std::min(pause, kLongestPause);
}

void set_pause_hook(PauseHook hook) noexcept {
  pause_hook = hook != nullptr ? hook : &sleep_unless_cancelled;
}

std::string Tries::described() const {
  if (all_ == 0) return {};
  return ", after " + std::to_string(all_) + " more " + (all_ == 1 ? "try" : "tries");
}

void Tries::wait(Cancel& cancel, std::chrono::milliseconds least,
                 std::optional<Clock::time_point> deadline) {
  std::chrono::milliseconds pause = std::max(back_off(count_), least);
  if (deadline) {
    pause = std::min(pause, std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now()));
  }
  pause_hook.load()(pause, cancel);
  ++count_;
  ++all_;
}

bool Tries::wait_before(Clock::time_point deadline, Cancel& cancel) {
  const std::chrono::milliseconds pause = back_off(count_);
  if (Clock::now() + pause > deadline) return false;
  pause_hook.load()(pause, cancel);
  ++count_;
  ++all_;
  return true;
}

void Tries::failed(const TemporaryError& error, std::uint64_t brought, Cancel& cancel) {
  count_progress(brought);
  if (are_used_up()) {
    throw Error(error.kind(), std::string(error.message()) + described(), error.system_errno(),
                error.path());
  }
  wait(cancel);
}

}  // namespace tensorizer
