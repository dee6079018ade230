// The state of the interpreter, for threads with or without the GIL.
#pragma once

#define PY_SSIZE_T_CLEAN  // sizes of text are Py_ssize_t
#include <pthread.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

namespace tensorizer {

// Returns whether a thread may still take the GIL. While Python shuts down, that would end the
// thread, or block forever.
inline bool python_is_running() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() && !Py_IsFinalizing();
#else
  return Py_IsInitialized() && !_Py_IsFinalizing();
#endif
}

inline pthread_t main_thread;  // set by find_main_thread(), which each module calls when it is made

inline void find_main_thread() {
  main_thread =
      pybind11::module_::import("threading").attr("main_thread")().attr("ident").cast<pthread_t>();
}

// Returns whether Python handles signals on this thread: only the main thread, and in a child of
// fork() the thread that it started with.
inline bool on_main_thread() { return pthread_self() == main_thread || gettid() == getpid(); }

// Returns whether an interrupt hook has to look for signals on this thread.
inline bool handles_signals() { return on_main_thread() && python_is_running(); }

}  // namespace tensorizer
