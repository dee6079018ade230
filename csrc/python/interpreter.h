// The state of the interpreter, for threads with or without the GIL.
#pragma once

#define PY_SSIZE_T_CLEAN  // sizes of text are Py_ssize_t
#include <nanobind/nanobind.h>

namespace tensorizer {

// Returns whether a thread may still take the GIL. While Python shuts down, that would end the
// thread, or block forever.
bool python_is_running();

// Returns whether Python handles signals on this thread: only the main thread, and in a child of
// fork() the thread that it started with.
bool on_main_thread();

// Returns whether an interrupt hook has to look for signals on this thread.
inline bool handles_signals() { return on_main_thread() && python_is_running(); }

// Holds the GIL. While Python shuts down, it ends each other thread that wants the GIL, in here or
// in the code that this one runs: by an exception, which the constructor lets through and
// nanobind's does not. Such a thread has nothing to release.
class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  ~Gil() {
    if (python_is_running() || on_main_thread()) PyGILState_Release(state_);
  }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  const PyGILState_STATE state_;
};

// While Python shuts down, it ends each thread that wants the GIL, by an exception that unwinds the
// stack, which the functions of C++ between it and the thread's start do not let through: the
// process would be aborted. Here, such a thread waits for the end of the process instead.
void outlive_python();

// Says that the module is being imported, by any thread.
void find_main_thread();

}  // namespace tensorizer
