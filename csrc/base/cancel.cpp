#include "base/cancel.h"

#include <algorithm>

#include "base/calls.h"
#include "base/error.h"
#include "base/gate.h"

namespace tensorizer {

namespace {
std::atomic<InterruptHook> interrupt_hook{nullptr};
}  // namespace

void set_interrupt_hook(InterruptHook hook) noexcept { interrupt_hook.store(hook); }

void Cancel::check() {
  const auto throw_if_requested = [this] {
    if (requested()) throw Error(ErrorKind::Cancelled, "the job was cancelled");
    const bool is_cleanup = owner_ == std::thread::id();
    if (!is_cleanup && must_end(owner_)) {
      throw Error(ErrorKind::Cancelled, "the job was cancelled, because the program ends");
    }
  };
  throw_if_requested();
  if (std::this_thread::get_id() != owner_) return;
  const auto now = Clock::now();
  if (now < next_poll_) return;
  next_poll_ = now + kPollInterval;
  if (const InterruptHook hook = hook_ ? hook_ : interrupt_hook.load()) {
    const WorksFor in_hook({caller().thread, true});
    hook();
  }
  // The hook runs code of the host, which may have called request().
  throw_if_requested();
}

void Cancel::wait(std::condition_variable& changed, std::unique_lock<std::mutex>& lock) {
  changed.wait_for(lock, kPollInterval);
  lock.unlock();
  check();
  lock.lock();
}

void Cancel::sleep(Clock::duration time) {
  // A simulated sleep is over at once.
  const Clock::duration longest = simulated_world() ? time : kPollInterval;
  const Clock::time_point end = Clock::now() + time;
  for (Clock::duration left = time; left > Clock::duration::zero(); left = end - Clock::now()) {
    check();
    sleep_for(std::min(left, longest));
  }
}

}  // namespace tensorizer
