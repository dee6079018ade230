#include "python/object.h"

#include <nanobind/stl/string.h>

#include <algorithm>

#include "base/error.h"
#include "python/error.h"
#include "python/interpreter.h"

namespace tensorizer {

namespace {

// Runs `body` with the GIL. Throws python_error for what Python raises in it.
template <typename Body>
auto in_python(const Body& body) -> decltype(body()) {
  if (!python_is_running()) throw Error(ErrorKind::Cancelled, "Python has ended");
  const Gil gil;
  try {
    return body();
  } catch (nanobind::python_error& error) {
    error.restore();
    throw_python_error();
  }
}

std::string name_of_type(nanobind::handle object) {
  return nanobind::cast<std::string>(object.type().attr("__name__"));
}

// Returns a view of memory for a method that keeps none.
nanobind::object view_of(const std::byte* memory, std::size_t size, int flags) {
  auto* const bytes = const_cast<char*>(reinterpret_cast<const char*>(memory));
  nanobind::object view =
      nanobind::steal(PyMemoryView_FromMemory(bytes, static_cast<Py_ssize_t>(size), flags));
  if (!view.is_valid()) throw_python_error();
  return view;
}

void give_back(PyObject* object) {
  if (object == nullptr || !python_is_running()) return;
  const Gil gil;
  Py_DECREF(object);
}

}  // namespace

PythonReference::~PythonReference() { give_back(object_); }

PythonBuffer::PythonBuffer(nanobind::handle object, int flags) {
  if (PyObject_GetBuffer(object.ptr(), &buffer_, flags) != 0) throw_python_error();
}

PythonBuffer::~PythonBuffer() {
  if (!python_is_running()) return;
  const Gil gil;
  PyBuffer_Release(&buffer_);
}

LentMemory::~LentMemory() { give_back(array_); }

Bytes LentMemory::take(std::size_t size) {
  const auto wanted = static_cast<Py_ssize_t>(size);
  // Views, and objects made from them, hold references to the array. A resize shows in its size.
  if (array_ == nullptr || Py_REFCNT(array_) > 1 || PyByteArray_Size(array_) < wanted) {
    Py_CLEAR(array_);
    array_ = PyByteArray_FromStringAndSize(nullptr, wanted);
    if (array_ == nullptr) throw_python_error();
  }
  return {reinterpret_cast<std::byte*>(PyByteArray_AsString(array_)), size};
}

nanobind::object LentMemory::view(std::size_t size, bool readonly) const {
  const nanobind::object whole = nanobind::steal(PyMemoryView_FromObject(array_));
  if (!whole.is_valid()) throw_python_error();
  const nanobind::object first = whole[nanobind::slice(static_cast<Py_ssize_t>(size))];
  return readonly ? first.attr("toreadonly")() : first;
}

FileObject::FileObject(PythonFile file)
    : reference_(std::move(file.object)),
      position_(file.start),
      seekable_(file.seekable),
      keeps_nothing_(file.keeps_nothing),
      label_("a file object (" + name_of_type(reference_.get()) + ")") {}

void FileObject::seek(std::uint64_t position) {
  if (position == position_) return;
  in_python([&] { reference_.get().attr("seek")(position); });
  position_ = position;
}

std::size_t FileObject::read(Bytes out) {
  const std::size_t got = in_python([&] {
    return nanobind::hasattr(reference_.get(), "readinto") ? read_into(out) : read_copy(out);
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
    const nanobind::handle file = reference_.get();
    if (nanobind::hasattr(file, "flush")) file.attr("flush")();
  });
}

// Returns the number of bytes that a method says it has moved.
std::size_t FileObject::count(const nanobind::object& result) const {
  if (result.is_none()) {
    throw Error(ErrorKind::InvalidArgument,
                label_ + " is in non-blocking mode: set it to blocking");
  }
  if (PyBool_Check(result.ptr()) != 0) {  // says "done", and would count as one byte
    throw_python_error(PyExc_TypeError,
                       label_ + " returned a bool, and must return a number of bytes");
  }
  const Py_ssize_t number = PyNumber_AsSsize_t(result.ptr(), PyExc_OverflowError);
  if (number == -1 && PyErr_Occurred() != nullptr) throw_python_error();
  if (number < 0) {
    throw Error(ErrorKind::InvalidArgument,
                label_ + " returned " + std::to_string(number) + " as a number of bytes");
  }
  return static_cast<std::size_t>(number);
}

// Calls a method and then releases the view, which must not be used later. Objects that were made
// from the view may live on; they keep its memory alive.
std::size_t FileObject::call(const char* method, const nanobind::object& view) const {
  const auto release = [&] {
    PyObject* const done = PyObject_CallMethod(view.ptr(), "release", nullptr);
    if (done == nullptr) PyErr_Clear();  // something still uses its buffer
    Py_XDECREF(done);
  };
  try {
    const nanobind::object result = reference_.get().attr(method)(view);
    release();
    return count(result);
  } catch (...) {
    release();
    throw;
  }
}

std::size_t FileObject::read_into(Bytes out) {
  if (keeps_nothing_) {
    return call("readinto", view_of(out.data(), out.size(), PyBUF_WRITE));
  }
  const Bytes lent = lent_.take(out.size());
  // An object that claims more bytes than it wrote must not expose what was in this memory before.
  std::fill(lent.begin(), lent.end(), std::byte{0});
  // A view of our own keeps the method from resizing the memory.
  const nanobind::object ours = lent_.view(lent.size(), false);
  const std::size_t got = call("readinto", lent_.view(lent.size(), false));
  std::copy_n(lent.begin(), std::min(got, lent.size()), out.begin());
  return got;
}

std::size_t FileObject::read_copy(Bytes out) const {
  const nanobind::object result = reference_.get().attr("read")(out.size());
  if (result.is_none()) return count(result);
  try {
    // The bytes of other buffers are not adjacent.
    const PythonBuffer buffer(result, PyBUF_SIMPLE);
    const ConstBytes got = buffer.bytes();
    std::ranges::copy(got.first(std::min(got.size(), out.size())), out.begin());
    return got.size();
  } catch (const python_error&) {
    throw_python_error(PyExc_TypeError, label_ + ": read() returned a " + name_of_type(result) +
                                            ", and must return bytes or a C-contiguous buffer");
  }
}

std::size_t FileObject::write_some(ConstBytes bytes) {
  if (keeps_nothing_) {
    return call("write", view_of(bytes.data(), bytes.size(), PyBUF_READ));
  }
  const Bytes lent = lent_.take(bytes.size());
  std::copy(bytes.begin(), bytes.end(), lent.begin());
  return call("write", lent_.view(lent.size(), true));
}

}  // namespace tensorizer
