// File objects of Python as places for files.
//
// Their methods are called with the GIL, one at a time, and what they raise goes to whoever waits
// for the job. The object is not closed.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "io/sink.h"
#include "io/source.h"

namespace tensorizer {

// Returns a source over the bytes of an object that has a buffer; the file begins at `start`.
std::unique_ptr<Source> buffer_source(const pybind11::buffer& buffer, std::uint64_t start);

struct __attribute__((visibility("hidden"))) PythonFile {
  pybind11::object object;
  std::uint64_t start = 0;  // the position now, where the file begins
  bool seekable = false;
  // Whether what its methods are given is not kept by anybody when they have returned.
  bool keeps_nothing = false;
};

// Reads by readinto(), or by read() where there is none. A `sequential` source seeks forward only,
// and only where that is possible. Where it ends is not asked for: it would make a decompressor
// read everything.
std::unique_ptr<Source> python_source(PythonFile file, bool sequential);

// Writes by write() and seek(), from `start` on, and leaves the object at the end of the file.
std::unique_ptr<Sink> python_sink(PythonFile file);

}  // namespace tensorizer
