// `RemoteBytes`, which gives Python the bytes of files on servers, for the package's file objects;
// `upload`, `Upload`, `remove` and `swap`, and the functions that prepare their options.
#include "python/remote_bytes.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <map>

#include "base/error.h"
#include "base/utf8.h"
#include "codec/sha256.h"
#include "engine/open/open_file.h"
#include "engine/open/read_ahead.h"
#include "engine/open/reopening_source.h"
#include "engine/options.h"
#include "io/aws/config.h"
#include "io/aws/config_file.h"
#include "io/copy.h"
#include "io/handed_over.h"
#include "io/places/open.h"
#include "io/secret.h"
#include "python/error.h"
#include "python/object.h"

namespace tensorizer {

namespace {

namespace nb = nanobind;

// An open file on a server.
struct RemoteBytes {
  const std::string uri;
  const SourceOptions options;
  ReadAhead ahead;
  const Wants wants;
};

std::unique_ptr<RemoteBytes> open_bytes(const std::string& uri, const OptionList& options,
                                        std::uint64_t begin, std::optional<std::uint64_t> end,
                                        std::uint64_t most,
                                        const std::shared_ptr<SharedAccess>& access, bool whole) {
  return run([&](Cancel& cancel) {
    SourceOptions parsed = parse_load_options(options).source;
    // A stream of Redis keys may have gaps; a Reader refuses them.
    parsed.any_bytes = folder_of(uri) == "redis";
    parsed.begin = begin;
    parsed.end = end.value_or(parsed.end);
    parsed.access = access;
    const auto open = [uri, parsed](Cancel& given) { return open_source(uri, parsed, given); };
    return std::unique_ptr<RemoteBytes>(
        new RemoteBytes{uri, parsed, ReadAhead(reopening_source(open, cancel), parsed.end, most),
                        whole ? Wants::All : Wants::Parts});
  });
}

// Compares options regardless of their order.
bool are_same(SourceOptions one, SourceOptions other) {
  std::sort(one.given.begin(), one.given.end());
  std::sort(other.given.begin(), other.given.end());
  return one == other;
}

// Returns the source for a Reader of the same file with these options; None if they are others, or
// the source is sequential, so that the Reader opens one of its own.
std::unique_ptr<HandedOver> shared_source(const RemoteBytes& bytes, const OptionList& options) {
  const std::shared_ptr<Source> source = bytes.ahead.source();
  const bool same = run([&](Cancel& /*cancel*/) {
    return are_same(parse_load_options(options).source, bytes.options);
  });
  if (!same || source->sequential()) return nullptr;
  return std::make_unique<HandedOver>(source);
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

// Returns a source of a file that begins at `start`, and of no byte from `end` on; None if the
// server sends the bytes only in order.
std::unique_ptr<HandedOver> section(const RemoteBytes& bytes, std::uint64_t start,
                                    std::optional<std::uint64_t> end) {
  const std::shared_ptr<Source> source = bytes.ahead.source();
  if (source->sequential()) return nullptr;
  return std::make_unique<HandedOver>(std::make_shared<SectionSource>(source, start, end));
}

std::size_t read_bytes(RemoteBytes& bytes, std::uint64_t offset, Bytes out) {
  return run([&](Cancel& cancel) {
    Source& source = *bytes.ahead.source();
    check_wants(source, bytes.wants);
    const std::size_t done = bytes.ahead.read(offset, out, cancel);
    // Nobody has the last bytes of a file before all of it has been checked.
    if (source.checks_at_end() && offset + done >= source.size().value()) source.confirm(cancel);
    return done;
  });
}

std::size_t read_into(RemoteBytes& source, std::uint64_t offset, nb::handle out) {
  const PythonBuffer target(out, PyBUF_CONTIG);
  return read_bytes(source, offset, target.bytes());
}

nb::bytes read(RemoteBytes& source, std::uint64_t offset, std::size_t size) {
  PyObject* bytes = nullptr;
  if (size <= static_cast<std::size_t>(PY_SSIZE_T_MAX)) {
    bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
  }
  if (bytes == nullptr) {  // a server may state any size
    throw_python_error(PyExc_MemoryError, "there is no memory for the " + std::to_string(size) +
                                              " bytes of " + source.ahead.source()->label());
  }
  auto owner = nb::steal<nb::bytes>(bytes);
  auto* const memory = reinterpret_cast<std::byte*>(PyBytes_AsString(bytes));
  const std::size_t done = read_bytes(source, offset, {memory, size});
  return done == size ? owner : nb::bytes(memory, done);
}

// Returns the name of a hash, and the digest that the server keeps of the whole file; or None.
std::optional<std::pair<std::string, std::string>> kept_digest(const RemoteBytes& bytes) {
  const std::optional<WholeDigest> kept = bytes.ahead.source()->digest();
  return kept ? std::optional(std::pair(std::string(kept->name()), kept->hex)) : std::nullopt;
}

void upload(const std::string& from, const std::string& to, const OptionList& options) {
  run([&](Cancel& cancel) {
    const std::unique_ptr<Source> source = open_source(from, {}, cancel);
    const std::unique_ptr<Sink> sink = open_sink(to, parse_save_options(options).sink, cancel);
    copy(*source, *sink, cancel);
  });
}

void remove(const std::string& uri, const OptionList& options) {
  run([&](Cancel& cancel) { remove_file(uri, parse_save_options(options).sink, cancel); });
}

bool swap(const std::string& uri, const std::optional<nb::bytes>& known, const nb::bytes& next,
          const OptionList& options) {
  const auto view = [](const nb::bytes& bytes) {
    return as_bytes(std::string_view(bytes.c_str(), bytes.size()));
  };
  const std::optional<ConstBytes> there = known ? std::optional(view(*known)) : std::nullopt;
  const ConstBytes content = view(next);
  return run([&](Cancel& cancel) {
    return swap_file(uri, there, content, parse_save_options(options).sink, cancel);
  });
}

// A copy of a file of this machine to another place, which other threads may watch and cancel.
class Upload {
 public:
  Upload(std::string from, std::string to, OptionList options)
      : from_(std::move(from)), to_(std::move(to)), options_(std::move(options)) {}

  // Copies the file, and returns the SHA-256 of the bytes that were sent.
  nb::bytes start() {
    const Sha256Digest found = run(cancel_, [&](Cancel& cancel) {
      const std::unique_ptr<Source> source = open_source(from_, {}, cancel);
      total_ = source->size().value_or(0);
      const std::unique_ptr<Sink> sink = open_sink(to_, parse_save_options(options_).sink, cancel);
      Sha256 digest;
      copy(*source, *sink, cancel, [&](ConstBytes piece) {
        digest.update(piece);
        done_ += piece.size();
      });
      return digest.finish();
    });
    return nb::bytes(found.data(), found.size());
  }
  nb::tuple progress() const { return nb::make_tuple(done_.load(), total_.load()); }
  void cancel() { cancel_.request(); }

 private:
  const std::string from_;
  const std::string to_;
  const OptionList options_;
  Cancel cancel_{&stop_on_signal};
  std::atomic<std::uint64_t> done_ = 0;
  std::atomic<std::uint64_t> total_ = 0;
};

// Returns the settings in a file of s3cmd.
std::map<std::string, std::string> s3cmd_settings(const nb::bytes& given) {
  const std::string path(given.c_str(), given.size());
  return run([&](Cancel& cancel) {
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
  return run([](Cancel& cancel) {
    const AwsConfig config("", cancel);
    const std::string endpoint = config.endpoint("S3");
    return endpoint.empty() ? config.profile().get("s3.endpoint_url") : endpoint;
  });
}

}  // namespace

void define_remote_bytes(nb::module_& module) {
  nb::class_<SharedAccess>(module, "SharedAccess").def(nb::init<>());
  nb::class_<RemoteBytes>(module, "RemoteBytes")
      .def(nb::new_(&open_bytes), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
           nb::arg().none() = nullptr, nb::arg("whole") = false)
      .def("size", [](const RemoteBytes& bytes) { return bytes.ahead.source()->size(); })
      .def("headers", [](const RemoteBytes& bytes) { return bytes.ahead.source()->headers(); })
      .def("digest", &kept_digest)
      .def("shared_source", &shared_source)
      .def("section", &section, nb::arg(), nb::arg().none())
      .def("read_into", &read_into)
      .def("read", &read);
  module.def("upload", &upload);
  module.def("remove", &remove);
  module.def("swap", &swap, nb::arg(), nb::arg().none(), nb::arg(), nb::arg());
  nb::class_<Upload>(module, "Upload")
      .def(nb::init<std::string, std::string, OptionList>())
      .def("start", &Upload::start)
      .def("progress", &Upload::progress)
      .def("cancel", &Upload::cancel);
  module.def("aws_s3_endpoint", &aws_s3_endpoint);
  module.def("s3cmd_settings", &s3cmd_settings);
}

}  // namespace tensorizer
