// Signatures of models, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace tensorizer {

void define_trust(nanobind::module_& module);

}  // namespace tensorizer
