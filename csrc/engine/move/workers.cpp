#include "engine/move/workers.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/gate.h"
#include "base/redaction.h"
#include "base/signals.h"

namespace tensorizer {

void run_workers(int count, Cancel& cancel, const std::function<void()>& body) {
  std::mutex mutex;
  std::exception_ptr first;
  const auto guarded = [&] {
    try {
      body();
    } catch (...) {
      {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
      cancel.request();
    }
  };
  std::vector<std::thread> threads;
  if (count > 1) {
    threads.reserve(static_cast<std::size_t>(count) - 1);
    const SignalsBlocked blocked;
    try {
      while (threads.size() + 1 < static_cast<std::size_t>(count)) {
        threads.emplace_back([&, caller = caller(), redactor = RedactedQuotes::redactor()] {
          const WorksFor works(caller);
          const RedactedQuotes quotes(redactor);
          guarded();
        });
      }
    } catch (const std::system_error&) {
    }
  }
  guarded();
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

void for_each_number(std::size_t count, int workers, Cancel& cancel,
                     const std::function<void(std::size_t)>& body) {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t next = 0;
  std::size_t left = count;
  // A worker without work waits for the others and does not return, because the caller's thread is
  // one of them and has to check for signals.
  const auto work = [&] {
    std::unique_lock lock(mutex);
    while (left > 0) {
      if (next == count) {
        cancel.wait(changed, lock);
        continue;
      }
      const std::size_t number = next++;
      lock.unlock();
      body(number);
      lock.lock();
      --left;
      changed.notify_all();
    }
  };
  run_workers(static_cast<int>(std::min(count, static_cast<std::size_t>(workers))), cancel, work);
}

}  // namespace tensorizer
