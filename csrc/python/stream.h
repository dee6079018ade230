// Gives Python the bytes of files on servers, for the package's file objects.
#pragma once

#include <pybind11/pybind11.h>

namespace tensorizer {

// Defines `RemoteBytes`, `upload`, and the functions that prepare their options.
void define_streams(pybind11::module_& module);

}  // namespace tensorizer
