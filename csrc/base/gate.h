// Lets one call at a time into an object whose calls run code of the host: signal handlers, methods
// of file objects, finalizers that a garbage collector runs. Such code may call the object again on
// the same thread, and must not wait for the call that it interrupted. So no mutex is held during a
// call, and a second call from the same thread is an error. Calls from other threads wait.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/cancel.h"

namespace tensorizer {

// Who called the library.
struct Caller {
  std::thread::id thread;
  bool is_in_hook;  // inside of another call of its thread, which has called the interrupt hook
};

// Returns the caller that the current thread works for, which may be itself.
Caller caller() noexcept;
inline std::thread::id calling_thread() noexcept { return caller().thread; }

// While this lives, caller() returns `given` on this thread.
class WorksFor {
 public:
  explicit WorksFor(Caller given) noexcept;
  ~WorksFor();
  WorksFor(const WorksFor&) = delete;
  WorksFor& operator=(const WorksFor&) = delete;

 private:
  const Caller before_;
};

// Who does a piece of work that other calls may wait for.
class Doer {
 public:
  // The current thread, in a job.
  explicit Doer(const Cancel& job) noexcept;

  // Returns false in a forked child: it does not have the threads of its parent.
  bool is_of_this_process() const noexcept;
  // Returns whether the work goes on while the current thread waits for it in a job: not if its
  // thread runs a signal handler, whose call this is. A call of a handler waits for no other job,
  // which may wait for the call that was interrupted.
  bool goes_on_beside(const Cancel& job) const noexcept;

 private:
  const Cancel* job_;
  std::thread::id thread_;
  pid_t process_;
};

// Thread-safe.
class Gate {
 public:
  // `busy` is the text of the Error(InvalidArgument) for a thread that is already inside.
  explicit Gate(std::string busy) : busy_(std::move(busy)) {}

  // A call by `caller`. It ends with the lifetime of this object.
  class Entry {
   public:
    // Blocks while a call of another thread is inside. Throws Error(InvalidArgument) if `caller` is
    // already inside, and what `cancel` throws.
    Entry(Gate& gate, std::thread::id caller, Cancel& cancel);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    Gate& gate_;
  };

  // Returns whether a call by `caller` is inside.
  bool has(std::thread::id caller) const;
  // Returns whether a call is inside that does not go on while a job waits for it.
  bool holds_up(const Cancel& job) const;

 private:
  struct Inside {
    std::thread::id caller;
    Doer doer;
  };

  const std::string busy_;
  mutable std::mutex mutex_;
  std::condition_variable left_;
  std::optional<Inside> inside_;
};

}  // namespace tensorizer
