// SharedSave for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace tensorizer {

void define_shared_save(pybind11::module_& module);

}  // namespace tensorizer
