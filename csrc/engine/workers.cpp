#include "engine/workers.h"

#include <pthread.h>
#include <signal.h>

#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace tensorizer {

namespace {

// While it lives, threads start with every signal blocked that can wait: signals belong to the
// program's own threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) {
      sigdelset(&all, fault);
    }
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

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
      while (threads.size() + 1 < static_cast<std::size_t>(count)) threads.emplace_back(guarded);
    } catch (const std::system_error&) {
    }
  }
  guarded();
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace tensorizer
