#define PY_SSIZE_T_CLEAN  // sizes of bytes are Py_ssize_t
#include "python/object.h"

#include <torch/csrc/Exceptions.h>

#include <algorithm>

#include "base/error.h"
#include "python/core/interpreter.h"
#include "python/module.h"

namespace tensorizer {

namespace {

// Runs `body` with the GIL. Throws what Python raises in it as torch throws it.
template <typename Body>
auto in_python(const Body& body) -> decltype(body()) {
  if (!python_is_running()) throw Error(ErrorKind::Cancelled, "Python has ended");
  const pybind11::gil_scoped_acquire gil;
  try {
    return body();
  } catch (pybind11::error_already_set& error) {
    error.restore();
    throw_python_error();
  }
}

void give_back(PyObject* object) {
  if (object == nullptr || !python_is_running()) return;
  const pybind11::gil_scoped_acquire gil;
  Py_DECREF(object);
}

}  // namespace

PythonReference::~PythonReference() { give_back(object_); }

LentMemory::~LentMemory() { give_back(array_); }

Bytes LentMemory::take(std::size_t size) {
  const auto wanted = static_cast<Py_ssize_t>(size);
  // Views, and objects made from them, hold references to the array. A resize shows in its size.
  if (array_ == nullptr || Py_REFCNT(array_) > 1 || PyByteArray_GET_SIZE(array_) < wanted) {
    Py_CLEAR(array_);
    array_ = PyByteArray_FromStringAndSize(nullptr, wanted);
    if (array_ == nullptr) throw pybind11::error_already_set();
  }
  return {reinterpret_cast<std::byte*>(PyByteArray_AS_STRING(array_)), size};
}

pybind11::object LentMemory::view(std::size_t size, bool readonly) const {
  const auto whole = pybind11::reinterpret_steal<pybind11::object>(PyMemoryView_FromObject(array_));
  if (!whole) throw pybind11::error_already_set();
  const pybind11::object first = whole[pybind11::slice(0, static_cast<pybind11::ssize_t>(size), 1)];
  return readonly ? first.attr("toreadonly")() : first;
}

FileObject::FileObject(PythonFile file)
    : reference_(std::move(file.object)),
      position_(file.start),
      seekable_(file.seekable),
      keeps_nothing_(file.keeps_nothing),
      label_("a file object (" + std::string(Py_TYPE(reference_.get().ptr())->tp_name) + ")") {}

void FileObject::seek(std::uint64_t position) {
  if (position == position_) return;
  in_python([&] { reference_.get().attr("seek")(position); });
  position_ = position;
}

std::size_t FileObject::read(Bytes out) {
  const std::size_t got = in_python([&] {
    return pybind11::hasattr(reference_.get(), "readinto") ? read_into(out) : read_copy(out);
  });
  if (got > out.size()) {
    throw Error(ErrorKind::InvalidArgument, label_ + " returned more bytes than were requested");
  }
  position_ += got;
  return got;
}

void FileObject::write(ConstBytes bytes) {
  while (!bytes.empty()) {
    const std::size_t done = in_python([&] { return write_some(bytes); });
    if (done == 0 || done > bytes.size()) {
      throw Error(ErrorKind::SystemError, label_ + " took " + std::to_string(done) + " of " +
                                              std::to_string(bytes.size()) + " bytes");
    }
    position_ += done;
    bytes = bytes.subspan(done);
  }
}

void FileObject::flush() {
  in_python([&] {
    const pybind11::handle file = reference_.get();
    if (pybind11::hasattr(file, "flush")) file.attr("flush")();
  });
}

// Returns the number of bytes that a method says it has moved.
std::size_t FileObject::count(const pybind11::object& result) const {
  if (result.is_none()) {
    throw Error(ErrorKind::InvalidArgument,
                label_ + " is in non-blocking mode: set it to blocking");
  }
  if (PyBool_Check(result.ptr()) != 0) {  // says "done", and would count as one byte
    throw pybind11::type_error(label_ + " returned a bool, and must return a number of bytes");
  }
  const Py_ssize_t number = PyNumber_AsSsize_t(result.ptr(), PyExc_OverflowError);
  if (number == -1 && PyErr_Occurred() != nullptr) throw pybind11::error_already_set();
  if (number < 0) {
    throw Error(ErrorKind::InvalidArgument,
                label_ + " returned " + std::to_string(number) + " as a number of bytes");
  }
  return static_cast<std::size_t>(number);
}

// Calls a method and then releases the view, which must not be used later. Objects that were made
// from the view may live on; they keep its memory alive.
std::size_t FileObject::call(const char* method, const pybind11::object& view) const {
  const auto release = [&] {
    const auto done = pybind11::reinterpret_steal<pybind11::object>(
        PyObject_CallMethod(view.ptr(), "release", nullptr));
    if (!done) PyErr_Clear();  // something still uses its buffer
  };
  try {
    const pybind11::object result = reference_.get().attr(method)(view);
    release();
    return count(result);
  } catch (const pybind11::error_already_set&) {
    release();
    throw;
  }
}

std::size_t FileObject::read_into(Bytes out) {
  if (keeps_nothing_) {
    const auto size = static_cast<pybind11::ssize_t>(out.size());
    return call("readinto", pybind11::memoryview::from_memory(out.data(), size));
  }
  const Bytes lent = lent_.take(out.size());
  // An object that claims more bytes than it wrote must not expose what was in this memory before.
  std::fill(lent.begin(), lent.end(), std::byte{0});
  // A view of our own keeps the method from resizing the memory.
  const pybind11::object ours = lent_.view(lent.size(), false);
  const std::size_t got = call("readinto", lent_.view(lent.size(), false));
  std::copy_n(lent.begin(), std::min(got, lent.size()), out.begin());
  return got;
}

std::size_t FileObject::read_copy(Bytes out) const {
  const pybind11::object result = reference_.get().attr("read")(out.size());
  if (result.is_none()) return count(result);
  Py_buffer buffer;
  // The buffer must be contiguous: the bytes of other buffers are not adjacent.
  if (PyObject_GetBuffer(result.ptr(), &buffer, PyBUF_SIMPLE) != 0) {
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError,
                 "%s: read() returned a %s, and must return bytes or a C-contiguous buffer",
                 label_.c_str(), Py_TYPE(result.ptr())->tp_name);
    throw pybind11::error_already_set();
  }
  const auto got = static_cast<std::size_t>(buffer.len);
  std::copy_n(static_cast<const std::byte*>(buffer.buf), std::min(got, out.size()), out.begin());
  PyBuffer_Release(&buffer);
  return got;
}

std::size_t FileObject::write_some(ConstBytes bytes) {
  if (keeps_nothing_) {
    const auto size = static_cast<pybind11::ssize_t>(bytes.size());
    const void* const begin = bytes.data();
    return call("write", pybind11::memoryview::from_memory(begin, size));
  }
  const Bytes lent = lent_.take(bytes.size());
  std::copy(bytes.begin(), bytes.end(), lent.begin());
  return call("write", lent_.view(lent.size(), true));
}

}  // namespace tensorizer
