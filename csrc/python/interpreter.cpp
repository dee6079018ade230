#include "python/interpreter.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

namespace tensorizer {

namespace {

pthread_t main_thread;

// Python has the function under a public name from 3.13 on, and it is not in the limited API.
auto find_is_finalizing() {
  void* found = dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
  if (found == nullptr) found = dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
  return reinterpret_cast<int (*)()>(found);
}

}  // namespace

bool python_is_running() {
  static const auto is_finalizing = find_is_finalizing();
  return Py_IsInitialized() != 0 && is_finalizing() == 0;
}

void find_main_thread() {
  const nanobind::module_ threading = nanobind::module_::import_("threading");
  main_thread = nanobind::cast<pthread_t>(threading.attr("main_thread")().attr("ident"));
}

void outlive_python() {
  while (!python_is_running() && !on_main_thread()) pause();
}

bool on_main_thread() { return pthread_self() == main_thread || gettid() == getpid(); }

}  // namespace tensorizer
