#include "io/upload/upload_queue.h"

#include <system_error>

#include "base/signals.h"

namespace tensorizer {

namespace {

std::uint64_t copied_bytes(const UploadPart& part) {
  std::uint64_t bytes = 0;
  for (const std::vector<std::byte>& copy : part.copies) bytes += copy.size();
  return bytes;
}

}  // namespace

UploadQueue::UploadQueue(const UploadLimits& limits, Send send)
    : limits_(limits), send_(std::move(send)) {}

UploadQueue::~UploadQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  cancel_.request();
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void UploadQueue::add(UploadPart part, Cancel& cancel) {
  std::unique_lock lock(mutex_);
  wait_until([this] { return copied_ <= limits_.copied; }, lock, cancel);
  copied_ += copied_bytes(part);
  const std::uint64_t number = part.number;
  waiting_.emplace(number, std::move(part));
  if (limits_.at_once == 1) {
    send_here(lock, cancel);
  } else if (idle_ == 0 && threads_.size() < static_cast<std::size_t>(limits_.at_once)) {
    try {
      const SignalsBlocked blocked;
      threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      if (threads_.empty()) throw;  // otherwise continue with fewer threads
    }
  }
  changed_.notify_all();
}

void UploadQueue::finish(Cancel& cancel) {
  std::unique_lock lock(mutex_);
  all_there_ = true;
  changed_.notify_all();
  if (limits_.at_once == 1) send_here(lock, cancel);
  wait_until([this] { return waiting_.empty() && sending_ == 0; }, lock, cancel);
}

void UploadQueue::wait_until(const std::function<bool()>& done, std::unique_lock<std::mutex>& lock,
                             Cancel& cancel) {
  for (;;) {
    if (error_) std::rethrow_exception(error_);
    if (done()) return;
    cancel.wait(changed_, lock);
  }
}

bool UploadQueue::may_send() const {
  if (waiting_.empty()) return false;
  // While add() blocks, or when all parts have been added, parts are not held back: the caller that
  // waits for the queue is the one that would add the missing part.
  if (!limits_.ahead || all_there_ || copied_ > limits_.copied) return true;
  return waiting_.begin()->first <= first_missing_ + *limits_.ahead;
}

void UploadQueue::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    changed_.wait(lock, [this] { return stopped_ || error_ || may_send(); });
    --idle_;
    if (stopped_ || error_) return;
    send_first(lock, cancel_);
  }
}

void UploadQueue::send_here(std::unique_lock<std::mutex>& lock, Cancel& cancel) {
  while (sending_ == 0 && !error_ && may_send()) send_first(lock, cancel);
}

void UploadQueue::send_first(std::unique_lock<std::mutex>& lock, Cancel& cancel) {
  const UploadPart part = std::move(waiting_.extract(waiting_.begin()).mapped());
  ++sending_;
  lock.unlock();
  std::exception_ptr error;
  try {
    send_(part, cancel);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  --sending_;
  copied_ -= copied_bytes(part);
  if (error && !error_) {
    error_ = error;
    cancel_.request();
  }
  sent_.insert(part.number);
  while (sent_.erase(first_missing_) > 0) ++first_missing_;
  changed_.notify_all();
}

}  // namespace tensorizer
