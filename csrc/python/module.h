// What the files of the Python module share.
#pragma once

namespace tensorizer {

// Whether a thread may still ask for the GIL: while Python shuts down, it would never come back.
bool python_is_running();

// Throws the Python exception that is set; with the GIL.
[[noreturn]] void throw_python_error();

}  // namespace tensorizer
