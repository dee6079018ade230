// The Python module `_core`: what a file holds, and its digest, without torch.
//
// It is linked against the layers below torch only. Calls release the GIL, and a pending signal
// ends them.
#define PY_SSIZE_T_CLEAN  // sizes of text are Py_ssize_t
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <new>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/error.h"
#include "codec/crc32.h"
#include "engine/file_digest.h"
#include "engine/open_file.h"
#include "engine/open_model.h"
#include "engine/options.h"
#include "format/safetensors/dtype.h"
#include "python/core/exception.h"
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
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// Runs `body` without the GIL. Its Cancel asks Python for pending signals.
template <typename Body>
auto run(const Body& body) {
  try {
    const py::gil_scoped_release no_gil;
    Cancel cancel(&stop_on_signal);
    return body(cancel);
  } catch (const Error& error) {
    throw_in_python(error);
  } catch (const std::bad_alloc&) {
    throw_in_python(Error(ErrorKind::OutOfMemory, "there is not enough memory for this"));
  }
}

py::bytes to_bytes(ConstBytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <typename Value>
py::object or_none(const std::optional<Value>& value) {
  return value ? py::object(to_bytes(*value)) : py::none();
}

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
    const TensorDetails details =
        run([&](Cancel& cancel) { return file_->read_details(file_->find(name), bytes, cancel); });
    std::optional<decltype(crc32_bytes(0))> crc32;
    if (details.crc32) crc32 = crc32_bytes(*details.crc32);
    return py::make_tuple(or_none(crc32), or_none(details.sha256));
  }

  std::string digest(std::int64_t threads, std::int64_t version, bool listed) const {
    return run([&](Cancel& cancel) {
      Progress progress;
      const DigestRequest request{parse_digest_version(version), listed, parse_threads(threads)};
      return file_digest(*file_, request, progress, cancel);
    });
  }

 private:
  const std::unique_ptr<OpenFile> file_;
};

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
  py::object make = py::module_::import("tensorizer_ops.errors").attr("_make");
  make_exception = make.release().ptr();
  py::class_<File>(module, "File")
      .def(py::init<const std::string&, const OptionList&>())
      .def("names", &File::names)
      .def("index", &File::index)
      .def("format", &File::format)
      .def("metadata", &File::metadata)
      .def("saved_digests", &File::saved_digests)
      .def("digest", &File::digest);
  module.def("set_secret",
             [](const std::string& name, const std::string& secret) { set_secret(name, secret); });
  module.attr("SAFETENSORS_DTYPES") = safetensors_dtypes();
}
