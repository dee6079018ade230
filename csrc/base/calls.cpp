#include "base/calls.h"

#include <pthread.h>

#include <atomic>

#include "base/error.h"
#include "base/world.h"

namespace tensorizer {

namespace {

// Sequentially consistent, so that a call that does not see `ending` is counted.
std::atomic<int> running{0};
std::atomic<bool> ending{false};
std::thread::id spared;  // written before `ending` is set
thread_local int own = 0;

// The other threads do not exist in a child of fork().
[[maybe_unused]] const int in_child = pthread_atfork(nullptr, nullptr, [] { running = own; });

void leave() noexcept {
  --own;
  --running;
}

}  // namespace

bool must_end(std::thread::id caller) noexcept { return ending && caller != spared; }

Call::Call() {
  ++own;
  ++running;
  if (!must_end(std::this_thread::get_id())) return;
  leave();
  throw Error(ErrorKind::Cancelled,
              "the program ends, and no thread but the main one can call this any more");
}

Call::~Call() { leave(); }

void end_calls(std::chrono::milliseconds most) {
  const auto until = Clock::now() + most;
  spared = std::this_thread::get_id();
  ending = true;
  while (running > own && Clock::now() < until) {
    sleep_for(std::chrono::milliseconds(1));
  }
}

void admit_calls() noexcept { ending = false; }

}  // namespace tensorizer
