// RemoteBytes for Python, and what the package's file objects need.
#pragma once

#define PY_SSIZE_T_CLEAN  // sizes of text are Py_ssize_t
#include <nanobind/nanobind.h>

namespace tensorizer {

void define_remote_bytes(nanobind::module_& module);

}  // namespace tensorizer
