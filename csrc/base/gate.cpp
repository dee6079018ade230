#include "base/gate.h"

#include <unistd.h>

#include "base/error.h"

namespace tensorizer {

namespace {
thread_local Caller works_for{};  // itself, if this has no thread
}  // namespace

Caller caller() noexcept {
  if (works_for.thread != std::thread::id()) return works_for;
  return {std::this_thread::get_id(), works_for.is_in_hook};
}

WorksFor::WorksFor(Caller given) noexcept : before_(works_for) { works_for = given; }
WorksFor::~WorksFor() { works_for = before_; }

Doer::Doer(const Cancel& job) noexcept
    : job_(&job), thread_(std::this_thread::get_id()), process_(getpid()) {}

bool Doer::is_of_this_process() const noexcept { return process_ == getpid(); }

bool Doer::goes_on_beside(const Cancel& job) const noexcept {
  if (!is_of_this_process() || thread_ == std::this_thread::get_id()) return false;
  const Caller waiting = caller();
  return job_ == &job || (thread_ != waiting.thread && !waiting.is_in_hook);
}

Gate::Entry::Entry(Gate& gate, std::thread::id caller, Cancel& cancel) : gate_(gate) {
  std::unique_lock lock(gate_.mutex_);
  while (gate_.inside_ && gate_.inside_->doer.is_of_this_process()) {
    if (gate_.inside_->caller == caller) throw Error(ErrorKind::InvalidArgument, gate_.busy_);
    cancel.wait(gate_.left_, lock);
  }
  gate_.inside_.emplace(Inside{caller, Doer(cancel)});
}

Gate::Entry::~Entry() {
  const std::lock_guard lock(gate_.mutex_);
  gate_.inside_.reset();
  gate_.left_.notify_one();
}

bool Gate::has(std::thread::id caller) const {
  const std::lock_guard lock(mutex_);
  return inside_ && inside_->doer.is_of_this_process() && inside_->caller == caller;
}

bool Gate::holds_up(const Cancel& job) const {
  const std::lock_guard lock(mutex_);
  return inside_ && !inside_->doer.goes_on_beside(job);
}

}  // namespace tensorizer
