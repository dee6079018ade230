#include "engine/workers.h"

#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/gate.h"
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
        threads.emplace_back([&guarded, caller = calling_thread()] {
          const WorksFor works(caller);
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

}  // namespace tensorizer
