// Lets one call at a time into an object whose calls run code of the host: signal handlers, methods
// of file objects, what a garbage collector calls. Such code may call the object again, and must
// not wait for the call that it has interrupted. So nothing is locked while a call is in, and a
// call that comes on its thread is an error. Calls on other threads wait.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "base/cancel.h"

namespace tensorizer {

// The thread that called the library: this one, or the one that it works for.
std::thread::id calling_thread() noexcept;

// While it lives, this thread works for another one.
class WorksFor {
 public:
  explicit WorksFor(std::thread::id caller) noexcept;
  ~WorksFor();
  WorksFor(const WorksFor&) = delete;
  WorksFor& operator=(const WorksFor&) = delete;
};

// Any thread.
class Gate {
 public:
  // `busy` is what Error(InvalidArgument) says to a thread that is in already.
  explicit Gate(std::string busy) : busy_(std::move(busy)) {}

  // A call by `caller`, for as long as it lives.
  class Entry {
   public:
    // Waits for what is in on another thread; throws what `cancel` throws.
    Entry(Gate& gate, std::thread::id caller, Cancel& cancel);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    Gate& gate_;
  };

  bool has(std::thread::id caller) const;

 private:
  const std::string busy_;
  mutable std::mutex mutex_;
  std::condition_variable left_;
  std::thread::id inside_;  // of no thread where nobody is
};

}  // namespace tensorizer
