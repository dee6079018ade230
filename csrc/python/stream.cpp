#define PY_SSIZE_T_CLEAN
#include "python/module.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/utf8.h"
#include "engine/open/read_ahead.h"
#include "engine/open/reopening_source.h"
#include "engine/options.h"
#include "io/aws/config.h"
#include "io/aws/config_file.h"
#include "io/copy.h"
#include "io/places/open.h"
#include "io/secret.h"
#include "ops/kernels.h"
#include "ops/script_reader.h"
#include "ops/translate_errors.h"
#include "transfer/memory/memory.h"

namespace tensorizer {

namespace {

// The writable memory of a Python object, locked while this lives.
class Target {
 public:
  explicit Target(const pybind11::object& object) {
    if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_CONTIG) != 0) {
      throw pybind11::error_already_set();
    }
  }
  ~Target() { PyBuffer_Release(&buffer_); }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  Bytes bytes() const {
    return {static_cast<std::byte*>(buffer_.buf), static_cast<std::size_t>(buffer_.len)};
  }

 private:
  Py_buffer buffer_{};
};

// An open file on a server.
struct RemoteBytes {
  const std::string uri;
  const SourceOptions options;
  ReadAhead ahead;
};

std::unique_ptr<RemoteBytes> open_bytes(const std::string& uri, const OptionList& options,
                                        std::uint64_t begin, std::optional<std::uint64_t> end,
                                        std::uint64_t most) {
  const pybind11::gil_scoped_release no_gil;
  return translate_errors([&] {
    SourceOptions parsed = parse_load_options(options).source;
    // A stream of Redis keys may have gaps; a Reader refuses them.
    parsed.any_bytes = folder_of(uri) == "redis";
    parsed.begin = begin;
    parsed.end = end.value_or(parsed.end);
    const auto open = [uri, parsed](Cancel& cancel) { return open_source(uri, parsed, cancel); };
    Cancel cancel;
    return std::unique_ptr<RemoteBytes>(
        new RemoteBytes{uri, parsed, ReadAhead(reopening_source(open, cancel), parsed.end, most)});
  });
}

// Compares options regardless of their order.
bool are_same(SourceOptions one, SourceOptions other) {
  std::sort(one.given.begin(), one.given.end());
  std::sort(other.given.begin(), other.given.end());
  return one == other;
}

// Returns a Reader of the same file. It shares the source if its options are the same and the
// source is not sequential.
pybind11::object make_reader(const RemoteBytes& bytes,
                             const std::map<std::string, std::string>& options) {
  std::shared_ptr<Source> source = bytes.ahead.source();
  const bool same = translate_errors([&] {
    return are_same(parse_load_options({options.begin(), options.end()}).source, bytes.options);
  });
  if (!same || source->sequential()) source = nullptr;
  return torch::jit::toPyObject(c10::IValue(
      c10::make_intrusive<ops::ScriptReader>(bytes.uri, string_dict(options), std::move(source))));
}

// The bytes of another source before `end`, in which the file begins at `start`.
class SectionSource final : public ForwardingSource {
 public:
  SectionSource(std::shared_ptr<Source> whole, std::uint64_t start,
                std::optional<std::uint64_t> end)
      : ForwardingSource(std::move(whole)),
        start_(start),
        end_(end.value_or(std::numeric_limits<std::uint64_t>::max())) {}

  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    if (offset >= end_) return 0;
    const std::uint64_t size = std::min<std::uint64_t>(out.size(), end_ - offset);
    return file_->read_up_to(offset, out.first(size), cancel);
  }
  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override {
    const std::uint64_t wanted = total_size(pieces);
    const std::uint64_t there = offset < end_ ? end_ - offset : 0;
    if (wanted > there) throw_source_ended(label(), offset + there, wanted - there);
    file_->read(offset, pieces, cancel);
  }
  std::optional<std::uint64_t> size() const override {
    const std::optional<std::uint64_t> size = file_->size();
    return size ? std::optional(std::min(*size, end_)) : std::nullopt;
  }
  std::uint64_t start() const override { return start_; }

 private:
  const std::uint64_t start_;
  const std::uint64_t end_;
};

// Returns a Reader of a file that begins at `start`, and of no byte from `end` on; None if the
// server sends the bytes only in order.
pybind11::object make_section_reader(const RemoteBytes& bytes, std::uint64_t start,
                                     std::optional<std::uint64_t> end,
                                     const std::map<std::string, std::string>& options) {
  const std::shared_ptr<Source> source = bytes.ahead.source();
  if (source->sequential()) return pybind11::none();
  return torch::jit::toPyObject(c10::IValue(c10::make_intrusive<ops::ScriptReader>(
      std::make_unique<SectionSource>(source, start, end), string_dict(options))));
}

std::size_t read_bytes(RemoteBytes& bytes, std::uint64_t offset, Bytes out) {
  const pybind11::gil_scoped_release no_gil;
  return translate_errors([&] {
    Cancel cancel;
    return bytes.ahead.read(offset, out, cancel);
  });
}

std::size_t read_into(RemoteBytes& source, std::uint64_t offset, const pybind11::object& out) {
  const Target target(out);
  return read_bytes(source, offset, target.bytes());
}

pybind11::object read(RemoteBytes& source, std::uint64_t offset, std::size_t size) {
  PyObject* bytes = nullptr;
  if (size <= static_cast<std::size_t>(PY_SSIZE_T_MAX)) {
    bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
  }
  if (bytes == nullptr) {  // a server may state any size
    const std::string message = "there is no memory for the " + std::to_string(size) +
                                " bytes of " + source.ahead.source()->label();
    PyErr_SetString(PyExc_MemoryError, message.c_str());
    throw pybind11::error_already_set();
  }
  auto owner = pybind11::reinterpret_steal<pybind11::object>(bytes);
  auto* const memory = reinterpret_cast<std::byte*>(PyBytes_AS_STRING(bytes));
  const std::size_t done = read_bytes(source, offset, {memory, size});
  if (done == size) return owner;
  return pybind11::bytes(PyBytes_AS_STRING(bytes), done);
}

void upload(const std::string& from, const std::string& to, const OptionList& options) {
  const pybind11::gil_scoped_release no_gil;
  translate_errors([&] {
    Cancel cancel;
    const std::unique_ptr<Source> source = open_source(from, {}, cancel);
    const std::unique_ptr<Sink> sink = open_sink(to, parse_save_options(options).sink, cancel);
    copy(*source, *sink, cancel);
  });
}

// Returns the settings in a file of s3cmd.
std::map<std::string, std::string> s3cmd_settings(const std::string& path) {
  return translate_errors([&] {
    Cancel cancel;
    const std::optional<IniSection> settings = read_s3cmd_settings(path, true, cancel);
    const bool is_text =
        settings && std::all_of(settings->begin(), settings->end(), [](auto& pair) {
          return is_utf8(pair.first) && is_utf8(pair.second);
        });
    if (!is_text) {
      throw Error(
          ErrorKind::InvalidFormat,
          quote(path, 4096) + " is not a configuration file of s3cmd with a section [default]");
    }
    return std::map<std::string, std::string>(settings->begin(), settings->end());
  });
}

// Returns the endpoint of S3 that the environment or the files in ~/.aws name, or an empty string.
std::string aws_s3_endpoint() {
  return translate_errors([] {
    Cancel cancel;
    const AwsConfig config("", cancel);
    const std::string endpoint = config.endpoint("S3");
    return endpoint.empty() ? config.profile().get("s3.endpoint_url") : endpoint;
  });
}

}  // namespace

void define_streams(pybind11::module_& module) {
  pybind11::class_<RemoteBytes>(module, "RemoteBytes")
      .def(pybind11::init(torch::wrap_pybind_function(open_bytes)))
      .def("size", [](const RemoteBytes& bytes) { return bytes.ahead.source()->size(); })
      .def("headers", [](const RemoteBytes& bytes) { return bytes.ahead.source()->headers(); })
      .def("reader", torch::wrap_pybind_function(make_reader))
      .def("section_reader", torch::wrap_pybind_function(make_section_reader))
      .def("read_into", torch::wrap_pybind_function(read_into))
      .def("read", torch::wrap_pybind_function(read));
  module.def("upload", torch::wrap_pybind_function(upload));
  module.def("aws_s3_endpoint", torch::wrap_pybind_function(aws_s3_endpoint));
  module.def("s3cmd_settings", torch::wrap_pybind_function(s3cmd_settings));
  module.def("refuse_traced_secrets", [](const std::string& uri, const OptionList& options) {
    translate_errors([&] { refuse_secrets(uri, options, "a traced program"); });
  });
  module.def("lacks_memory", torch::wrap_pybind_function(lacks_memory));
  module.def("is_traced", &ops::is_traced);
  module.def("is_fake", &ops::is_fake);
  module.def("scheme_folders", &scheme_folders);
  module.def("options_for", [](bool saves, const OptionList& options) {
    return options_for(saves ? OptionUse::Save : OptionUse::Load, options);
  });
  module.def("without_secrets", [](const std::string& uri) { return without_secrets(uri); });
}

}  // namespace tensorizer
