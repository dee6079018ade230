#include "python/files.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/gate.h"
#include "io/skip.h"
#include "python/error.h"
#include "python/object.h"

namespace tensorizer {

namespace {

// The most bytes in one call of a method, so that a cancel is noticed in between.
constexpr std::size_t kMost = 8 << 20;

std::string busy(const FileObject& object) {
  return object.label() +
         " is in use on this thread: code that runs meanwhile, such as a signal handler or one of "
         "its methods, cannot read or write it";
}

class PythonSource : public Source {
 public:
  PythonSource(PythonFile file, bool sequential)
      : start_(file.start), sequential_(sequential), object_(std::move(file)) {}

  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    const Gate::Entry entry(gate_, std::this_thread::get_id(), cancel);
    if (!go_to(offset, cancel)) return 0;
    return fill(out, cancel);
  }

  std::optional<std::uint64_t> size() const override { return std::nullopt; }
  std::uint64_t start() const override { return start_; }
  bool sequential() const override { return sequential_; }
  const std::string& label() const override { return object_.label(); }

 private:
  // Returns false if the object ends before `offset`.
  bool go_to(std::uint64_t offset, Cancel& cancel) {
    if (object_.is_seekable()) {
      object_.seek(offset);
      return true;
    }
    return skip_to(offset, object_.position(), label(),
                   [&](Bytes out) { return fill(out, cancel); });
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

  const std::uint64_t start_;
  const bool sequential_;
  FileObject object_;
  Gate gate_{busy(object_)};
};

class PythonSink : public Sink {
 public:
  explicit PythonSink(PythonFile file) : start_(file.start), object_(std::move(file)) {}

  bool sequential() const override { return false; }
  std::uint64_t start() const override { return start_; }
  // This sink cannot move data up, so it reserves room for tensors that are added in several calls.
  std::uint64_t usual_head_size() const override { return 256 << 10; }
  void begin(std::uint64_t head_size, std::optional<std::uint64_t>) override {
    head_size_ = head_size;
  }

  void write_head(ConstBytes head, Cancel& cancel) override {
    if (head.size() != head_size_) {
      throw Error(ErrorKind::Internal,
                  "the head of " + label() + " has another size than reserved");
    }
    write_at(start_, {&head, 1}, cancel);
    // Makes what was written visible, and returns to where the next bytes go.
    const Gate::Entry entry(gate_, std::this_thread::get_id(), cancel);
    object_.seek(written_);
    object_.flush();
  }

  void write(std::uint64_t offset, std::span<const ConstBytes> pieces, KeptUntil,
             Cancel& cancel) override {
    write_at(start_ + head_size_ + offset, pieces, cancel);
  }

  bool in_place() const override { return true; }

  void finish(std::uint64_t size, Cancel& cancel) override {
    cancel.check();
    const Gate::Entry entry(gate_, std::this_thread::get_id(), cancel);
    object_.seek(start_ + head_size_ + size);
    object_.flush();
  }

  void abort() noexcept override {}

  const std::string& label() const override { return object_.label(); }

 private:
  void write_at(std::uint64_t offset, std::span<const ConstBytes> pieces, Cancel& cancel) {
    const Gate::Entry entry(gate_, std::this_thread::get_id(), cancel);
    object_.seek(offset);
    for (const ConstBytes piece : pieces) {
      for (std::size_t at = 0; at < piece.size(); at += kMost) {
        cancel.check();
        object_.write(piece.subspan(at, std::min(kMost, piece.size() - at)));
      }
    }
    written_ = std::max(written_, object_.position());
  }

  const std::uint64_t start_;
  std::uint64_t head_size_ = 0;
  FileObject object_;
  std::uint64_t written_ = 0;  // where the last bytes of the body end
  Gate gate_{busy(object_)};
};

}  // namespace

std::unique_ptr<Source> buffer_source(nanobind::handle buffer, std::uint64_t start) {
  auto view = std::make_shared<PythonBuffer>(buffer, PyBUF_FULL_RO);
  if (!view->is_contiguous()) {
    throw_python_error(PyExc_ValueError, "a buffer must be C-contiguous");
  }
  const Bytes bytes = view->bytes();
  return memory_source(bytes, std::move(view), "a buffer in memory", start);
}

std::unique_ptr<Source> python_source(PythonFile file, bool sequential) {
  return std::make_unique<PythonSource>(std::move(file), sequential);
}

std::unique_ptr<Sink> python_sink(PythonFile file) {
  return std::make_unique<PythonSink>(std::move(file));
}

}  // namespace tensorizer
