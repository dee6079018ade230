#define PY_SSIZE_T_CLEAN  // sizes of bytes are Py_ssize_t
#include "_python_files.h"

#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "_python.h"
#include "base/error.h"

namespace tensorizer {

namespace {

// What moves in one call: between two of them a cancel is seen.
constexpr std::size_t kMost = 8 << 20;

// Runs `body` with the GIL; what Python raises in it is thrown as torch throws it.
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

// A reference that is given back with the GIL, and kept where Python is gone.
class Reference {
 public:
  explicit Reference(pybind11::object object) : object_(object.release().ptr()) {}
  ~Reference() {
    if (!python_is_running()) return;
    const pybind11::gil_scoped_acquire gil;
    Py_DECREF(object_);
  }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;

  pybind11::handle get() const noexcept { return object_; }

 private:
  PyObject* const object_;
};

ConstBytes bytes_of(const pybind11::memoryview& view) {
  const Py_buffer& buffer = *PyMemoryView_GET_BUFFER(view.ptr());
  return {static_cast<const std::byte*>(buffer.buf), static_cast<std::size_t>(buffer.len)};
}

// The object, and where it stands.
class Object {
 public:
  explicit Object(PythonFile file)
      : reference_(std::move(file.object)),
        position_(file.start),
        seekable_(file.seekable),
        label_("a file object (" + std::string(Py_TYPE(reference_.get().ptr())->tp_name) + ")") {}

  const std::string& label() const noexcept { return label_; }
  std::uint64_t position() const noexcept { return position_; }
  bool is_seekable() const noexcept { return seekable_; }

  void seek(std::uint64_t position) {
    if (position == position_) return;
    in_python([&] { reference_.get().attr("seek")(position); });
    position_ = position;
  }

  // How much there was; 0 at the end.
  std::size_t read(Bytes out) {
    const std::size_t got = in_python([&] {
      return pybind11::hasattr(reference_.get(), "readinto") ? read_into(out) : read_copy(out);
    });
    if (got > out.size()) {
      throw Error(ErrorKind::InvalidArgument, label_ + " gave more bytes than it was asked for");
    }
    position_ += got;
    return got;
  }

  void write(ConstBytes bytes) {
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

  void flush() {
    in_python([&] {
      const pybind11::handle file = reference_.get();
      if (pybind11::hasattr(file, "flush")) file.attr("flush")();
    });
  }

 private:
  // What a call returned as the number of bytes that it moved.
  std::size_t count(const pybind11::object& result) const {
    if (result.is_none()) {
      throw Error(ErrorKind::InvalidArgument, label_ + " does not wait: set it to blocking");
    }
    const Py_ssize_t number = PyNumber_AsSsize_t(result.ptr(), PyExc_OverflowError);
    if (number == -1 && PyErr_Occurred() != nullptr) throw pybind11::error_already_set();
    return static_cast<std::size_t>(number);
  }

  // Nobody may keep the view, whose memory is not Python's.
  std::size_t with_view(const char* method, const pybind11::memoryview& view) const {
    try {
      const pybind11::object result = reference_.get().attr(method)(view);
      view.attr("release")();
      return count(result);
    } catch (const pybind11::error_already_set&) {
      view.attr("release")();
      throw;
    }
  }

  std::size_t read_into(Bytes out) const {
    const auto size = static_cast<pybind11::ssize_t>(out.size());
    return with_view("readinto", pybind11::memoryview::from_memory(out.data(), size));
  }

  std::size_t read_copy(Bytes out) const {
    const pybind11::object result = reference_.get().attr("read")(out.size());
    if (result.is_none()) return count(result);
    const pybind11::memoryview view(result);
    const ConstBytes got = bytes_of(view);
    std::copy_n(got.begin(), std::min(got.size(), out.size()), out.begin());
    return got.size();
  }

  std::size_t write_some(ConstBytes bytes) const {
    const auto size = static_cast<pybind11::ssize_t>(bytes.size());
    const void* const begin = bytes.data();
    return with_view("write", pybind11::memoryview::from_memory(begin, size));
  }

  const Reference reference_;
  std::uint64_t position_;
  const bool seekable_;
  const std::string label_;
};

class PythonSource : public Source {
 public:
  PythonSource(PythonFile file, bool sequential)
      : start_(file.start), sequential_(sequential), object_(std::move(file)) {}

  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const std::size_t done = read_up_to(offset, pieces[i], cancel);
      offset += done;
      if (done < pieces[i].size()) {
        throw_source_ended(label(), offset, total_size(pieces.subspan(i)) - done);
      }
    }
  }

  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    const std::lock_guard lock(mutex_);
    if (!go_to(offset, cancel)) return 0;
    return fill(out, cancel);
  }

  std::optional<std::uint64_t> size() const override { return std::nullopt; }
  std::uint64_t start() const override { return start_; }
  bool sequential() const override { return sequential_; }
  const std::string& label() const override { return object_.label(); }

 private:
  // False where the object ends before that.
  bool go_to(std::uint64_t offset, Cancel& cancel) {
    if (object_.is_seekable()) {
      object_.seek(offset);
      return true;
    }
    if (offset < object_.position()) {
      throw Error(ErrorKind::Internal, label() + " is read at byte " + std::to_string(offset) +
                                           " after it gave its bytes up to " +
                                           std::to_string(object_.position()));
    }
    std::vector<std::byte> scratch(
        std::min<std::uint64_t>(offset - object_.position(), kLargestSkip));
    while (object_.position() < offset) {
      const Bytes skipped(scratch.data(),
                          std::min<std::uint64_t>(offset - object_.position(), scratch.size()));
      if (fill(skipped, cancel) < skipped.size()) return false;
    }
    return true;
  }

  std::size_t fill(Bytes out, Cancel& cancel) {
    std::size_t done = 0;
    while (done < out.size()) {
      cancel.check();
      const std::size_t got = object_.read(out.subspan(done, std::min(out.size() - done, kMost)));
      if (got == 0) break;
      done += got;
    }
    return done;
  }

  static constexpr std::uint64_t kLargestSkip = 256 << 10;

  const std::uint64_t start_;
  const bool sequential_;
  std::mutex mutex_;
  Object object_;
};

class PythonSink : public Sink {
 public:
  explicit PythonSink(PythonFile file) : start_(file.start), object_(std::move(file)) {}

  bool ascending() const override { return false; }
  std::uint64_t start() const override { return start_; }
  // Nothing moves up here, so that there is room for what a file gets in several calls.
  std::uint64_t usual_prefix() const override { return 256 << 10; }
  void reserve(std::uint64_t size) override { prefix_size_ = size; }

  void write_prefix(ConstBytes prefix, Cancel& cancel) override {
    if (prefix.size() > prefix_size_) {
      throw Error(ErrorKind::InvalidArgument,
                  label() + " has no room for an index of " + std::to_string(prefix.size()) +
                      " bytes: write all tensors in one call, or say by the option "
                      "'expected_tensors' how many there will be");
    }
    write_at(start_, {&prefix, 1}, cancel);
    // What was written is to be seen from then on.
    const std::lock_guard lock(mutex_);
    object_.flush();
  }

  void write(std::span<const Section>, std::uint64_t offset, std::span<const ConstBytes> pieces,
             Cancel& cancel) override {
    write_at(start_ + prefix_size_ + offset, pieces, cancel);
  }

  bool in_place() const override { return true; }

  void finish(std::uint64_t size, Cancel& cancel) override {
    cancel.check();
    const std::lock_guard lock(mutex_);
    object_.seek(start_ + prefix_size_ + size);
    object_.flush();
  }

  void abort() noexcept override {}

  const std::string& label() const override { return object_.label(); }

 private:
  void write_at(std::uint64_t offset, std::span<const ConstBytes> pieces, Cancel& cancel) {
    const std::lock_guard lock(mutex_);
    object_.seek(offset);
    for (const ConstBytes piece : pieces) {
      for (std::size_t at = 0; at < piece.size(); at += kMost) {
        cancel.check();
        object_.write(piece.subspan(at, std::min(kMost, piece.size() - at)));
      }
    }
  }

  const std::uint64_t start_;
  std::uint64_t prefix_size_ = 0;
  std::mutex mutex_;
  Object object_;
};

}  // namespace

std::unique_ptr<Source> buffer_source(const pybind11::buffer& buffer, std::uint64_t start) {
  // The view keeps the object from changing.
  const pybind11::memoryview view(buffer);
  return memory_source(bytes_of(view), std::make_shared<Reference>(view), "a buffer in memory",
                       start);
}

std::unique_ptr<Source> python_source(PythonFile file, bool sequential) {
  return std::make_unique<PythonSource>(std::move(file), sequential);
}

std::unique_ptr<Sink> python_sink(PythonFile file) {
  return std::make_unique<PythonSink>(std::move(file));
}

}  // namespace tensorizer
