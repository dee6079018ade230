// Errors on their way to Python, from the functions of the module and from ops.
#pragma once

#define PY_SSIZE_T_CLEAN  // sizes of text are Py_ssize_t
#include <nanobind/nanobind.h>

#include <exception>
#include <new>
#include <string>

#include "base/calls.h"
#include "base/cancel.h"
#include "base/error.h"

// A Python exception that C++ throws: the class of torch, whose bindings catch it by its name and
// make the Python exception of its members. It is declared here as in torch's Exceptions.h, whose
// other headers would tie this module to one version of torch and of Python.
struct __attribute__((visibility("default"))) python_error : std::exception {
  python_error() = default;
  python_error(const python_error& other);
  ~python_error() override;
  const char* what() const noexcept override { return message.c_str(); }

  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
  // The text for callers that lose the type.
  std::string message;
};

namespace tensorizer {

// Throws the Python exception that is set. The caller holds the GIL.
[[noreturn]] void throw_python_error();
[[noreturn]] void throw_python_error(PyObject* type, const std::string& message);
// Throws the Python exception for an error. Takes the GIL.
[[noreturn]] void throw_in_python(const Error& error);

// Throws the Python exception of a pending signal, on the thread that handles signals.
void stop_on_signal();

// Makes the errors of this module Python exceptions, and loads the class of each kind.
void define_errors();
// Makes the library call Python: for errors of ops, signals, logs, and to run alone.
void set_hooks();

// Runs `body` without the GIL, and ends it when `cancel` says so.
template <typename Body>
auto run(Cancel& cancel, const Body& body) {
  try {
    const nanobind::gil_scoped_release no_gil;
    const Call call;
    return body(cancel);
  } catch (const Error& error) {
    throw_in_python(error);
  } catch (const std::bad_alloc&) {
    throw_in_python(Error(ErrorKind::OutOfMemory, "there is not enough memory for this"));
  }
}

// The same for jobs that only a signal ends.
template <typename Body>
auto run(const Body& body) {
  Cancel cancel(&stop_on_signal);
  return run(cancel, body);
}

}  // namespace tensorizer
