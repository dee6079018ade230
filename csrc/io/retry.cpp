#include "io/retry.h"

#include <algorithm>

#include "base/world.h"

namespace tensorizer {

namespace {

constexpr std::chrono::milliseconds kFirstPause{50};
constexpr std::chrono::milliseconds kLongestPause{10000};

// Random, so that callers that failed at the same moment do not retry at the same moment.
std::chrono::milliseconds back_off(int count) {
  const std::chrono::milliseconds pause = shortest_pause(count);
  return pause + std::chrono::milliseconds(random_number() % static_cast<unsigned>(pause.count()));
}

}  // namespace

std::chrono::milliseconds shortest_pause(int count) noexcept {
  std::chrono::milliseconds pause = kFirstPause;
  for (; count > 0 && pause < kLongestPause; --count) pause *= 2;
  return std::min(pause, kLongestPause);
}

std::string Tries::described() const {
  if (all_ == 0) return {};
  return ", after " + std::to_string(all_) + " more " + (all_ == 1 ? "try" : "tries");
}

bool Tries::wait(Cancel& cancel, std::chrono::milliseconds least,
                 std::optional<Clock::time_point> deadline) {
  const std::chrono::milliseconds pause = std::max(back_off(count_), least);
  if (deadline && Clock::now() + pause > *deadline) return false;
  cancel.sleep(pause);
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
