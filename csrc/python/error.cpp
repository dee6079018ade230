#include "python/error.h"

#include <functional>

#include "base/hooks.h"
#include "python/interpreter.h"
#include "tensorizer_ops/hooks.h"

python_error::python_error(const python_error& other)
    : std::exception(other),
      type(other.type),
      value(other.value),
      traceback(other.traceback),
      message(other.message) {
  const tensorizer::Gil gil;
  for (PyObject* const object : {type, value, traceback}) Py_XINCREF(object);
}

python_error::~python_error() {
  if (type == nullptr || !tensorizer::python_is_running()) return;
  const tensorizer::Gil gil;
  for (PyObject* const object : {type, value, traceback}) Py_XDECREF(object);
}

namespace tensorizer {

namespace {

// tensorizer_ops.errors._make. Never released: a call may still run when the process ends.
PyObject* make_exception = nullptr;

// Returns the Python exception that is set.
python_error take_python_error() {
  python_error taken;
  PyErr_Fetch(&taken.type, &taken.value, &taken.traceback);
  PyObject* const text = taken.value == nullptr ? nullptr : PyObject_Str(taken.value);
  Py_ssize_t size = 0;
  const char* const utf8 = text == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(text, &size);
  taken.message = utf8 == nullptr ? "python_error" : std::string(utf8, size);
  PyErr_Clear();
  Py_XDECREF(text);
  return taken;
}

// Sets the exception that `make_exception` returns for an error, or the one that it raises.
void set_exception(const Error& error) {
  const std::string_view text = error.message();
  const std::string kind(kind_name(error.kind()));
  PyObject* const exception = PyObject_CallFunction(
      make_exception, "sy#iy#", kind.c_str(), text.data(), static_cast<Py_ssize_t>(text.size()),
      error.system_errno(), error.path().data(), static_cast<Py_ssize_t>(error.path().size()));
  if (exception == nullptr) return;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception)), exception);
  Py_DECREF(exception);
}

void raise_in_python(const Error& error) {
  if (python_is_running()) throw_in_python(error);
}

void run_with_gil(const std::function<void()>& work) {
  if (!python_is_running()) {
    work();
    return;
  }
  const Gil gil;
  work();
}

// Like stop_on_signal(), also in the interpreter of TorchScript, where no Python exception
// survives, only its text.
void stop_ops_on_signal() {
  if (!in_script()) {
    stop_on_signal();
    return;
  }
  if (!handles_signals()) return;
  const Gil gil;
  if (PyOS_InterruptOccurred() == 0) return;
  // Python sees the signal once the interpreter has returned.
  PyErr_SetInterrupt();
  throw Error(ErrorKind::Cancelled, "interrupted by a signal");
}

void log_in_python(const std::string& text) {
  if (!python_is_running()) return;
  const Gil gil;
  try {
    nanobind::module_::import_("logging")
        .attr("getLogger")("tensorizer_ops")
        .attr("info")("%s", text.c_str());
  } catch (nanobind::python_error& error) {
    // A signal may have arrived while the logger ran.
    if (!error.matches(PyExc_Exception)) {
      error.restore();
      throw_python_error();
    }
    // A handler that fails must not make a load fail.
    error.discard_as_unraisable("tensorizer_ops");
  }
}

}  // namespace

void throw_python_error() { throw take_python_error(); }

void throw_python_error(PyObject* type, const std::string& message) {
  PyErr_SetString(type, message.c_str());
  throw_python_error();
}

void throw_in_python(const Error& error) {
  const Gil gil;
  set_exception(error);
  python_error exception = take_python_error();
  // AOTInductor and C++ callers lose the type: the text names the kind.
  exception.message = error.what();
  throw exception;
}

void stop_on_signal() {
  if (!handles_signals()) return;
  const Gil gil;
  if (PyErr_CheckSignals() != 0) throw_python_error();
}

void define_errors() {
  nanobind::object make = nanobind::module_::import_("tensorizer_ops.errors").attr("_make");
  make_exception = make.release().ptr();
  nanobind::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    if (!thrown) {  // it is none of C++: nanobind has caught what ends the thread
      outlive_python();
      std::terminate();
    }
    try {
      std::rethrow_exception(thrown);
    } catch (const python_error& error) {
      for (PyObject* const object : {error.type, error.value, error.traceback}) Py_XINCREF(object);
      PyErr_Restore(error.type, error.value, error.traceback);
    }
  });
}

void set_hooks() {
  set_raise_hook(&raise_in_python);
  set_alone_hook(&run_with_gil);
  set_interrupt_hook(&stop_ops_on_signal);
  set_log_hook(&log_in_python);
}

}  // namespace tensorizer
