// What the files of the Python module share.
#pragma once

#include <pybind11/pybind11.h>

namespace tensorizer {

// Throws the Python exception that is set. The caller holds the GIL.
[[noreturn]] void throw_python_error();

// Defines `RemoteBytes`, which gives Python the bytes of files on servers, for the package's file
// objects; `upload`, and the functions that prepare their options.
void define_streams(pybind11::module_& module);

}  // namespace tensorizer
