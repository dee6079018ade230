// Functions that the files of the Python module share.
#pragma once

namespace tensorizer {

// Returns whether a thread may still take the GIL. While Python shuts down, that would block
// forever.
bool python_is_running();

// Throws the Python exception that is set. The caller holds the GIL.
[[noreturn]] void throw_python_error();

}  // namespace tensorizer
