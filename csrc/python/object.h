// A file object of Python, called from any thread, with the GIL.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "python/files.h"

namespace tensorizer {

// A reference that is given back with the GIL, and kept where Python is gone.
class PythonReference {
 public:
  explicit PythonReference(pybind11::object object) : object_(object.release().ptr()) {}
  ~PythonReference();
  PythonReference(const PythonReference&) = delete;
  PythonReference& operator=(const PythonReference&) = delete;

  pybind11::handle get() const noexcept { return object_; }

 private:
  PyObject* const object_;
};

// Memory that methods are given views of. It is Python's, so whoever keeps a view keeps the memory,
// and has it alone from then on.
class LentMemory {
 public:
  LentMemory() = default;
  ~LentMemory();
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;

  // `size` bytes that nobody has a view of. Of one call, until the next one.
  Bytes take(std::size_t size);
  // A view of the first `size` bytes of them.
  pybind11::object view(std::size_t size, bool readonly) const;

 private:
  PyObject* array_ = nullptr;  // a bytearray
};

// The object, and where it stands. One call at a time; what Python raises is thrown as torch throws
// it.
class __attribute__((visibility("hidden"))) FileObject {
 public:
  explicit FileObject(PythonFile file);

  const std::string& label() const noexcept { return label_; }
  std::uint64_t position() const noexcept { return position_; }
  bool is_seekable() const noexcept { return seekable_; }

  void seek(std::uint64_t position);
  // How much there was; 0 at the end.
  std::size_t read(Bytes out);
  void write(ConstBytes bytes);
  void flush();

 private:
  std::size_t count(const pybind11::object& result) const;
  std::size_t call(const char* method, const pybind11::object& view) const;
  std::size_t read_into(Bytes out);
  std::size_t read_copy(Bytes out) const;
  std::size_t write_some(ConstBytes bytes);

  const PythonReference reference_;
  std::uint64_t position_;
  const bool seekable_;
  const bool keeps_nothing_;
  const std::string label_;
  LentMemory lent_;
};

}  // namespace tensorizer
