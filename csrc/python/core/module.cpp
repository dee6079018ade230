// The Python module `_core`: what a file holds, its digest and its verification, without torch.
//
// It is linked against the layers below torch only. Calls release the GIL, and a pending signal
// ends them.
#define PY_SSIZE_T_CLEAN  // sizes of text are Py_ssize_t
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cxxabi.h>

#include <chrono>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "base/calls.h"
#include "base/cancel.h"
#include "base/error.h"
#include "base/suggest.h"
#include "codec/crc32.h"
#include "engine/open/open_file.h"
#include "engine/open/open_model.h"
#include "engine/options.h"
#include "engine/rewrite/file_digest.h"
#include "engine/save/new_layout.h"
#include "format/safetensors/dtype.h"
#include "io/places/open.h"
#include "python/core/exception.h"
#include "python/core/interpreter.h"
#include "tensorizer_ops/secrets.h"

namespace {

using namespace tensorizer;
namespace py = pybind11;

// tensorizer_ops.errors._make. Never released: a call may still run when the process ends.
PyObject* make_exception = nullptr;

[[noreturn]] void throw_in_python(const Error& error) {
  set_exception(make_exception, error);
  throw py::error_already_set();
}

void stop_on_signal() {
  if (!handles_signals()) return;
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// Runs `body` without the GIL, and ends it when `cancel` says so.
template <typename Body>
auto run(Cancel& cancel, const Body& body) {
  try {
    const py::gil_scoped_release no_gil;
    const Call call;
    return body(cancel);
  } catch (const Error& error) {
    throw_in_python(error);
  } catch (const std::bad_alloc&) {
    throw_in_python(Error(ErrorKind::OutOfMemory, "there is not enough memory for this"));
  }
}

// The same for jobs that only a signal ends.
template <typename Body>
auto run(const Body& body) {
  Cancel cancel(&stop_on_signal);
  return run(cancel, body);
}

py::bytes to_bytes(ConstBytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <typename Value>
py::object or_none(const std::optional<Value>& value) {
  return value ? py::object(to_bytes(*value)) : py::none();
}

// A job that other threads may watch and cancel.
struct Job {
  Progress progress;
  Cancel cancel{&stop_on_signal};
};

// A file whose index has been read. Thread-safe, except for a file that can be read only once.
class File {
 public:
  File(const std::string& uri, const OptionList& options)
      : file_(run([&](Cancel& cancel) {
          const LoadOptions parsed = parse_load_options(options);
          return std::make_unique<OpenFile>(open_model(uri, parsed, cancel), parsed, cancel);
        })) {}

  std::vector<std::string> names() const { return {file_->names().begin(), file_->names().end()}; }

  // Returns for each tensor: name, torch's name of the dtype or None, shape, offsets of its header
  // and its data, size of its data, and size in memory.
  py::list index() const {
    py::list list;
    for (std::uint32_t number = 0; number < file_->names().size(); ++number) {
      const Entry& entry = file_->entry(number);
      const py::object dtype =
          entry.dtype ? py::object(py::str(std::string(dtype_info(*entry.dtype).torch_name)))
                      : py::none();
      py::tuple shape(entry.shape.size());
      for (std::size_t i = 0; i < entry.shape.size(); ++i) shape[i] = entry.shape[i];
      list.append(py::make_tuple(std::string(file_->names()[number]), dtype, shape,
                                 entry.header_offset, entry.data_offset, entry.data_size,
                                 entry.memory_size()));
    }
    return list;
  }

  // Returns the format and its version, whether data is encrypted, whether a key authenticates the
  // index, and whether the file keeps the digests that its own digest is made of.
  py::tuple format() const {
    const Catalogue& catalogue = file_->catalogue();
    const FormatInfo info = catalogue.info();
    return py::make_tuple(info.format == Format::Tensors ? "tensors" : "safetensors", info.version,
                          catalogue.encrypted(), catalogue.authenticated(),
                          !catalogue.data_digests().empty());
  }

  // Returns the texts that were stored with the tensors, by key.
  py::dict metadata() const {
    py::dict dict;
    for (const auto& [key, value] : file_->metadata().value_or(tensorizer::Metadata()))
      dict[py::str(key)] = py::str(value);
    return dict;
  }

  // Returns the CRC32 and the SHA-256 that were saved of a tensor, None for those that were not.
  py::tuple saved_digests(const std::string& name) const {
    std::vector<std::byte> bytes;
    const TensorDetails details = read_details(name, bytes);
    std::optional<decltype(crc32_bytes(0))> crc32;
    if (const auto& own = details.digests[Hash::Crc32]) crc32 = crc32_bytes(crc32_of(*own));
    return py::make_tuple(or_none(crc32), or_none(details.digests[Hash::Sha256]));
  }

  // Returns the word that asks a save for the hashes of this file, and the kinds of hashes.
  py::tuple hashes() const {
    const HashKinds hashes = run([&](Cancel& cancel) { return file_->hashes(cancel); });
    std::vector<std::string_view> kinds;
    if (hashes.crc32) kinds.push_back(hashes_word({.crc32 = true}));
    if (hashes.sha256) kinds.push_back(hashes_word({.sha256 = true}));
    if (hashes.chunked) {
      kinds.push_back(hashes_word({.chunked = true, .chunk_hash = hashes.chunk_hash}));
    }
    return py::make_tuple(hashes_word(hashes), kinds);
  }

  // Returns the passes and the memory that derived the key of a tensor; None if it was not derived.
  py::object key_cost(const std::string& name) const {
    std::vector<std::byte> bytes;
    const TensorDetails details = read_details(name, bytes);
    if (!details.crypt.derivation) return py::none();
    const Argon2Cost& cost = details.crypt.derivation->cost;
    return py::make_tuple(cost.passes, cost.memory);
  }

  std::string digest(std::int64_t threads, std::int64_t version, bool listed) {
    const std::shared_ptr<Job> job = begin();
    return run(job->cancel, [&](Cancel& cancel) {
      const DigestRequest request{parse_digest_version(version), listed, parse_threads(threads)};
      return file_digest(*file_, request, job->progress, cancel);
    });
  }

  void verify(const std::string& kinds, std::int64_t threads) {
    const std::shared_ptr<Job> job = begin();
    run(job->cancel, [&](Cancel& cancel) {
      verify_file(*file_, parse_verify(kinds), parse_threads(threads), job->progress, cancel);
    });
  }

  // Returns the bytes that the last job has moved so far, and those that it moves in all.
  py::tuple progress() const {
    return py::make_tuple(job_->progress.done.load(), job_->progress.total.load());
  }

  void cancel() { job_->cancel.request(); }

  // Returns the URI for messages: quoted, without secrets.
  const std::string& label() const { return file_->source().label(); }

  // Returns the size of the chunks whose digests the file lists; 0 if it lists none.
  std::uint64_t digest_chunk() const { return file_->catalogue().chunk_digests().chunk_size(); }

 private:
  TensorDetails read_details(const std::string& name, std::vector<std::byte>& header) const {
    return run(
        [&](Cancel& cancel) { return file_->read_details(file_->find(name), header, cancel); });
  }

  std::shared_ptr<Job> begin() { return job_ = std::make_shared<Job>(); }

  const std::unique_ptr<OpenFile> file_;
  std::shared_ptr<Job> job_ = std::make_shared<Job>();  // the GIL guards the pointer
};

// The longest that the exit of the program waits for calls of other threads.
constexpr std::chrono::seconds kPatience{5};

std::terminate_handler terminate_before = nullptr;

// While Python shuts down, it ends each thread that wants the GIL, by an exception that unwinds the
// stack, which the functions of C++ between it and the thread's start do not let through: the
// process would be aborted. Such a thread waits here for the end of the process instead.
void outlive_python() {
  const bool is_unwound = abi::__cxa_current_exception_type() == nullptr;
  while (is_unwound && !python_is_running() && !on_main_thread()) pause();
  terminate_before();
}

void end_calls_at_exit() {
  py::module_::import("atexit").attr("register")(py::cpp_function([] {
    terminate_before = std::set_terminate(&outlive_python);
    const py::gil_scoped_release no_gil;
    end_calls(kPatience);
  }));
  // In a program that goes on without Python.
  Py_AtExit(&admit_calls);
}

// Returns the names that safetensors files have for torch's dtypes.
py::dict safetensors_dtypes() {
  py::dict names;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::string name(safetensors_dtype(dtype));
    if (!name.empty()) names[py::str(std::string(dtype_info(dtype).torch_name))] = py::str(name);
  }
  return names;
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  find_main_thread();
  end_calls_at_exit();
  py::object make = py::module_::import("tensorizer_ops.errors").attr("_make");
  make_exception = make.release().ptr();
  py::class_<File>(module, "File")
      .def(py::init<const std::string&, const OptionList&>())
      .def("names", &File::names)
      .def("index", &File::index)
      .def("format", &File::format)
      .def("metadata", &File::metadata)
      .def("saved_digests", &File::saved_digests)
      .def("hashes", &File::hashes)
      .def("key_cost", &File::key_cost)
      .def("digest", &File::digest)
      .def("verify", &File::verify)
      .def("progress", &File::progress)
      .def("cancel", &File::cancel)
      .def("label", &File::label)
      .def("digest_chunk", &File::digest_chunk);
  module.def("set_secret",
             [](const std::string& name, const std::string& secret) { set_secret(name, secret); });
  module.def("did_you_mean", [](const std::string& given, const std::vector<std::string>& known) {
    return did_you_mean(given, std::vector<std::string_view>(known.begin(), known.end()));
  });
  module.def("is_uri",
             [](const std::string& text) { return run([&](Cancel&) { return is_uri(text); }); });
  module.def("format_of", [](const std::string& uri) {
    const auto format = run([&](Cancel&) { return format_of(uri, std::nullopt); });
    return format == Format::Tensors ? "tensors" : "safetensors";
  });
  module.attr("SAFETENSORS_DTYPES") = safetensors_dtypes();
}
