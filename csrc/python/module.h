// Functions that the files of the Python module share.
#pragma once

namespace tensorizer {

// Throws the Python exception that is set. The caller holds the GIL.
[[noreturn]] void throw_python_error();

}  // namespace tensorizer
