// The bytes of files on servers, for the file objects of Python.
#pragma once

#include <pybind11/pybind11.h>

namespace tensorizer {

// `RemoteBytes`, `upload`, and what it takes to open them.
void define_streams(pybind11::module_& module);

}  // namespace tensorizer
