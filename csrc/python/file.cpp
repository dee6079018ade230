// `File`: what a file holds, its digest and its verification, without torch.
#include "python/file.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codec/crc32.h"
#include "engine/open/open_file.h"
#include "engine/open/open_model.h"
#include "engine/options.h"
#include "engine/rewrite/file_digest.h"
#include "io/places/open.h"
#include "python/error.h"

namespace tensorizer {

namespace {

namespace nb = nanobind;

nb::bytes to_bytes(ConstBytes bytes) { return nb::bytes(bytes.data(), bytes.size()); }

nb::str to_str(std::string_view text) { return nb::str(text.data(), text.size()); }

template <typename Value>
nb::object or_none(const std::optional<Value>& value) {
  return value ? nb::object(to_bytes(*value)) : nb::none();
}

// A job that other threads may watch and cancel.
struct Job {
  Progress progress;
  Cancel cancel{&stop_on_signal};
};

// A file whose index has been read. Thread-safe, except for a file that can be read only once.
class File {
 public:
  // `in_any_order` refuses a stream at once.
  File(const std::string& uri, const OptionList& options, bool in_any_order)
      : uri_(uri), file_(run([&](Cancel& cancel) {
          const LoadOptions parsed = parse_load_options(options);
          return std::make_unique<OpenFile>(open_model(uri, parsed, cancel), parsed, cancel,
                                            in_any_order ? Wants::AnyOrder : Wants::All);
        })) {}

  std::vector<std::string> names() const { return {file().names().begin(), file().names().end()}; }

  // Returns for each tensor: name, torch's name of the dtype or None, shape, offsets of its header
  // and its data, size of its data, and size in memory.
  nb::list index() const {
    nb::list list;
    OpenFile& open = file();
    for (std::uint32_t number = 0; number < open.names().size(); ++number) {
      const Entry& entry = open.entry(number);
      const nb::object dtype =
          entry.dtype ? nb::object(to_str(dtype_info(*entry.dtype).torch_name)) : nb::none();
      nb::list shape;
      for (const std::uint64_t length : entry.shape) shape.append(length);
      list.append(nb::make_tuple(to_str(open.names()[number]), dtype, nb::tuple(shape),
                                 entry.header_offset, entry.data_offset, entry.data_size,
                                 entry.memory_size()));
    }
    return list;
  }

  // Returns the format and its version, whether data is encrypted, whether a key authenticates the
  // index, and whether the file keeps the digests that its own digest is made of.
  nb::tuple format() const {
    const Catalogue& catalogue = file().catalogue();
    const FormatInfo info = catalogue.info();
    return nb::make_tuple(info.format == Format::Tensors ? "tensors" : "safetensors", info.version,
                          catalogue.encrypted(), catalogue.authenticated(),
                          !catalogue.data_digests().empty());
  }

  // Returns the texts that were stored with the tensors, by key.
  nb::dict metadata() const {
    nb::dict dict;
    for (const auto& [key, value] : file().metadata().value_or(Metadata())) {
      dict[to_str(key)] = to_str(value);
    }
    return dict;
  }

  // Returns the CRC32 and the SHA-256 that were saved of a tensor, None for those that were not.
  nb::tuple saved_digests(const std::string& name) const {
    std::vector<std::byte> bytes;
    const TensorDetails details = read_details(name, bytes);
    std::optional<decltype(crc32_bytes(0))> crc32;
    if (const auto& own = details.digests[Hash::Crc32]) crc32 = crc32_bytes(crc32_of(*own));
    return nb::make_tuple(or_none(crc32), or_none(details.digests[Hash::Sha256]));
  }

  // Returns the word that asks a save for the hashes of this file, and the kinds of hashes.
  std::pair<std::string_view, std::vector<std::string_view>> hashes() const {
    OpenFile& open = file();
    return run([&](Cancel& cancel) {
      const HashKinds hashes = open.hashes(cancel);
      std::vector<std::string_view> kinds;
      if (hashes.crc32) kinds.push_back(hashes_word({.crc32 = true}));
      if (hashes.sha256) kinds.push_back(hashes_word({.sha256 = true}));
      if (hashes.chunked) {
        kinds.push_back(hashes_word({.chunked = true, .chunk_hash = hashes.chunk_hash}));
      }
      return std::pair(hashes_word(hashes), kinds);
    });
  }

  // Returns the passes and the memory that derived the key of a tensor; None if it was not derived.
  nb::object key_cost(const std::string& name) const {
    std::vector<std::byte> bytes;
    const TensorDetails details = read_details(name, bytes);
    if (!details.crypt.derivation) return nb::none();
    const Argon2Cost& cost = details.crypt.derivation->cost;
    return nb::make_tuple(cost.passes, cost.memory);
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
  nb::tuple progress() const {
    return nb::make_tuple(job_->progress.done.load(), job_->progress.total.load());
  }

  void cancel() { job_->cancel.request(); }

  // Returns the URI for messages: quoted, without secrets.
  const std::string& label() const { return file_->source().label(); }

  // Asks is_own_file().
  bool is_own() const { return is_own_file(uri_, file_->source()); }

  // Returns the size of the chunks whose digests the file lists; 0 if it lists none.
  std::uint64_t digest_chunk() const { return file().catalogue().chunk_digests().chunk_size(); }

 private:
  // Returns the file, for what may be given out.
  OpenFile& file() const {
    run([&](Cancel& /*cancel*/) { check_wants(file_->source(), Wants::Parts); });
    return *file_;
  }

  TensorDetails read_details(const std::string& name, std::vector<std::byte>& header) const {
    OpenFile& open = file();
    return run([&](Cancel& cancel) { return open.read_details(open.find(name), header, cancel); });
  }

  std::shared_ptr<Job> begin() { return job_ = std::make_shared<Job>(); }

  const std::string uri_;
  const std::unique_ptr<OpenFile> file_;
  std::shared_ptr<Job> job_ = std::make_shared<Job>();  // the GIL guards the pointer
};

}  // namespace

void define_file(nb::module_& module) {
  nb::class_<File>(module, "File")
      .def(nb::init<const std::string&, const OptionList&, bool>(), nb::arg("uri"),
           nb::arg("options"), nb::arg("in_any_order") = false)
      .def("names", &File::names)
      .def("index", &File::index)
      .def("format", &File::format)
      .def("metadata", &File::metadata)
      .def("hashes", &File::hashes)
      .def("saved_digests", &File::saved_digests)
      .def("key_cost", &File::key_cost)
      .def("digest", &File::digest)
      .def("verify", &File::verify)
      .def("progress", &File::progress)
      .def("cancel", &File::cancel)
      .def("label", &File::label)
      .def("is_own", &File::is_own)
      .def("digest_chunk", &File::digest_chunk);
}

}  // namespace tensorizer
