#include "base/gate.h"

#include <unistd.h>

#include "base/error.h"

namespace tensorizer {

namespace {
thread_local std::thread::id works_for;
}  // namespace

std::thread::id calling_thread() noexcept {
  return works_for == std::thread::id() ? std::this_thread::get_id() : works_for;
}

WorksFor::WorksFor(std::thread::id caller) noexcept { works_for = caller; }
WorksFor::~WorksFor() { works_for = std::thread::id(); }

Doer::Doer(const Cancel& job) noexcept
    : job_(&job), thread_(std::this_thread::get_id()), process_(getpid()) {}

bool Doer::is_of_this_process() const noexcept { return process_ == getpid(); }

bool Doer::goes_on_beside(const Cancel& job) const noexcept {
  if (!is_of_this_process() || thread_ == std::this_thread::get_id()) return false;
  return job_ == &job || thread_ != calling_thread();
}

Gate::Entry::Entry(Gate& gate, std::thread::id caller, Cancel& cancel) : gate_(gate) {
  std::unique_lock lock(gate_.mutex_);
  while (gate_.inside_ != std::thread::id()) {
    if (gate_.inside_ == caller) throw Error(ErrorKind::InvalidArgument, gate_.busy_);
    cancel.wait(gate_.left_, lock);
  }
  gate_.inside_ = caller;
}

Gate::Entry::~Entry() {
  const std::lock_guard lock(gate_.mutex_);
  gate_.inside_ = std::thread::id();
  gate_.left_.notify_one();
}

bool Gate::has(std::thread::id caller) const {
  const std::lock_guard lock(mutex_);
  return inside_ == caller;
}

}  // namespace tensorizer
