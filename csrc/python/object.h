// Calls a file object of Python, from any thread, and takes the GIL for that.
#pragma once

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "python/files.h"

namespace tensorizer {

// A reference to a Python object. The destructor takes the GIL to release it, and leaks it after
// Python has shut down.
class PythonReference {
 public:
  explicit PythonReference(nanobind::object object) : object_(object.release().ptr()) {}
  ~PythonReference();
  PythonReference(const PythonReference&) = delete;
  PythonReference& operator=(const PythonReference&) = delete;

  nanobind::handle get() const noexcept { return object_; }

 private:
  PyObject* const object_;
};

// The memory of an object with the buffer protocol, which neither moves nor ends while this lives.
// The destructor takes the GIL.
class PythonBuffer {
 public:
  // Throws what Python raises if the object has no such memory. The caller holds the GIL.
  PythonBuffer(nanobind::handle object, int flags);
  ~PythonBuffer();
  PythonBuffer(const PythonBuffer&) = delete;
  PythonBuffer& operator=(const PythonBuffer&) = delete;

  bool is_contiguous() const { return PyBuffer_IsContiguous(&buffer_, 'C') != 0; }
  Bytes bytes() const {
    return {static_cast<std::byte*>(buffer_.buf), static_cast<std::size_t>(buffer_.len)};
  }

 private:
  Py_buffer buffer_{};
};

// Memory that is passed to methods as views. It belongs to Python: if a method keeps a view, it
// keeps the memory alive, and take() allocates other memory from then on.
class LentMemory {
 public:
  LentMemory() = default;
  ~LentMemory();
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;

  // Returns `size` bytes that no view refers to. Valid until the next take(). The caller holds the
  // GIL.
  Bytes take(std::size_t size);
  // Returns a view of the first `size` bytes.
  nanobind::object view(std::size_t size, bool readonly) const;

 private:
  PyObject* array_ = nullptr;  // a bytearray
};

// A file object and its position. One call at a time. Throws python_error for what Python raises.
class __attribute__((visibility("hidden"))) FileObject {
 public:
  explicit FileObject(PythonFile file);

  const std::string& label() const noexcept { return label_; }
  std::uint64_t position() const noexcept { return position_; }
  bool is_seekable() const noexcept { return seekable_; }

  void seek(std::uint64_t position);
  // Returns how many bytes were read; 0 at the end.
  std::size_t read(Bytes out);
  void write(ConstBytes bytes);
  void flush();

 private:
  std::size_t count(const nanobind::object& result) const;
  std::size_t call(const char* method, const nanobind::object& view) const;
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
