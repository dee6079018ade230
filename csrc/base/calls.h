// The calls of the library that run now, for a host that ends before the process does, such as
// Python: a call that returned to it then would crash.
#pragma once

#include <chrono>
#include <thread>

namespace tensorizer {

// A call by a host's thread. It ends with the lifetime of this object.
class Call {
 public:
  // Throws Error(Cancelled) after end_calls(), unless on the thread that called it.
  Call();
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
};

// Cancels the calls of all other threads, refuses later ones, and blocks until those that run have
// ended, or for `most`. The current thread may go on to call the library.
void end_calls(std::chrono::milliseconds most);

// Admits the calls of all threads again.
void admit_calls() noexcept;

// Returns whether a call by `caller` must end.
bool must_end(std::thread::id caller) noexcept;

}  // namespace tensorizer
