// Makes the Python exception of an Error.
#pragma once

#define PY_SSIZE_T_CLEAN  // sizes of text are Py_ssize_t
#include <Python.h>

#include <string>

#include "base/error.h"

namespace tensorizer {

// Sets the exception that `make` (tensorizer_ops.errors._make) returns for an error, or the one
// that `make` raises. The caller holds the GIL.
inline void set_exception(PyObject* make, const Error& error) {
  const std::string_view text = error.message();
  const std::string kind(kind_name(error.kind()));
  PyObject* exception = PyObject_CallFunction(
      make, "sy#iy#", kind.c_str(), text.data(), static_cast<Py_ssize_t>(text.size()),
      error.system_errno(), error.path().data(), static_cast<Py_ssize_t>(error.path().size()));
  if (exception == nullptr) return;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception)), exception);
  Py_DECREF(exception);
}

}  // namespace tensorizer
