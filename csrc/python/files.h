// Reads and writes file objects of Python.
//
// Their methods are called with the GIL, one at a time. What they raise is thrown to the caller of
// the job. The object is not closed.
#pragma once

#define PY_SSIZE_T_CLEAN  // sizes of bytes are Py_ssize_t
#include <nanobind/nanobind.h>

#include <memory>

#include "io/sink.h"
#include "io/source.h"

namespace tensorizer {

// Returns a source over the bytes of an object with the buffer protocol. The file begins at
// `start`.
std::unique_ptr<Source> buffer_source(nanobind::handle buffer, std::uint64_t start);

struct __attribute__((visibility("hidden"))) PythonFile {
  nanobind::object object;
  std::uint64_t start = 0;  // the position now, where the file begins
  bool seekable = false;
  // Whether its methods drop all references to the memory that they are passed before they return.
  bool keeps_nothing = false;
};

// Returns a source that reads by readinto(), or by read() if there is no readinto(). A `sequential`
// source only moves forward, by seek() if the object is seekable. The source does not ask for the
// size: finding the end makes a decompressor read everything.
std::unique_ptr<Source> python_source(PythonFile file, bool sequential);

// Returns a sink that writes by write() and seek(), from `start` on. finish() leaves the object at
// the end of the file.
std::unique_ptr<Sink> python_sink(PythonFile file);

}  // namespace tensorizer
