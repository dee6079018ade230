// File for Python.
#pragma once

#define PY_SSIZE_T_CLEAN  // sizes of text are Py_ssize_t
#include <nanobind/nanobind.h>

namespace tensorizer {

void define_file(nanobind::module_& module);

}  // namespace tensorizer
