// torch.classes.tensorizer._Internals: what the Python package asks of a Reader beyond its public
// methods. Results of several parts are objects with properties.
#include <torch/library.h>

#include <mutex>

#include "io/handed_over.h"
#include "ops/internals.h"
#include "ops/kernels.h"
#include "ops/script_reader.h"
#include "ops/script_writer.h"
#include "tensorizer_ops/constants.h"
#include "transfer/files/fill.h"
#include "transfer/files/tracing.h"
#include "transfer/memory/dtype.h"
#include "transfer/memory/memory.h"

namespace tensorizer::ops {

namespace {

using NameList = c10::List<std::string>;
using Numbers = c10::List<std::int64_t>;
using Tensors = std::vector<at::Tensor>;
using OptionalDevice = std::optional<c10::Device>;
using OptionalType = std::optional<c10::ScalarType>;

// Ends one call that runs on another thread.
class ScriptCancel final : public torch::CustomClassHolder {
 public:
  // Runs `body` with a Cancel of the current thread, which cancel() requests.
  template <typename Body>
  void run(const Body& body) {
    const auto cancel = std::make_shared<Cancel>();
    {
      const std::lock_guard lock(mutex_);
      running_ = cancel;
      if (requested_) cancel->request();
    }
    body(*cancel);
  }
  void cancel() {
    const std::lock_guard lock(mutex_);
    requested_ = true;
    if (running_) running_->request();
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<Cancel> running_;
  bool requested_ = false;
};

// Of all tensors, in the order of the file: see ListedTensor.
struct Listing final : torch::CustomClassHolder {
  explicit Listing(std::vector<ListedTensor> list) {
    for (ListedTensor& tensor : list) {
      names.push_back(std::move(tensor.name));
      types.push_back(static_cast<std::int64_t>(tensor.type));
      header_offsets.push_back(number(tensor.header_offset));
      data_offsets.push_back(number(tensor.data_offset));
      data_sizes.push_back(number(tensor.data_size));
      memory_sizes.push_back(number(tensor.memory_size));
      stored_as.push_back(number(tensor.stored_as));
    }
  }

  NameList names;
  Numbers types, header_offsets, data_offsets, data_sizes, memory_sizes, stored_as;
};

struct FilledTensors final : torch::CustomClassHolder {
  Tensors tensors;
  NameList missing_keys, unexpected_keys;
};

struct Internals final : torch::CustomClassHolder {
  explicit Internals(c10::intrusive_ptr<ScriptReader> of) : reader(std::move(of)) {}
  FileReader& file() const noexcept { return reader->file(); }

  const c10::intrusive_ptr<ScriptReader> reader;
};

std::vector<std::uint32_t> as_numbers(const Numbers& given) {
  const std::vector<std::int64_t> numbers = given.vec();
  return {numbers.begin(), numbers.end()};
}

c10::intrusive_ptr<FilledTensors> fill_tensors(FileReader& reader, NameList names, Tensors tensors,
                                               OptionalDevice device, bool strict,
                                               std::string verify, std::int64_t threads, bool cast,
                                               OptionalType dtype) {
  const FillRequest request{
      device, strict ? Names::Same : Names::Any, parse_verify(verify), threads, cast, dtype};
  Filled filled = fill(reader, string_vector(names), tensors, request);
  auto result = c10::make_intrusive<FilledTensors>();
  result->tensors = std::move(filled.tensors);
  result->missing_keys = NameList(filled.keys.missing_keys);
  result->unexpected_keys = NameList(filled.keys.unexpected_keys);
  return result;
}

using Options = std::optional<StringDict>;

// Returns a Reader of a source that was handed over, of the file at the URI if there is one.
c10::intrusive_ptr<ScriptReader> reader_of(std::int64_t source, std::optional<std::string> uri,
                                           Options options) {
  std::shared_ptr<Source> taken =
      translate_errors([&] { return take_handed<std::shared_ptr<Source>>(source); });
  if (uri) return c10::make_intrusive<ScriptReader>(*uri, options, std::move(taken));
  return c10::make_intrusive<ScriptReader>(std::move(taken), options);
}

c10::intrusive_ptr<ScriptWriter> writer_to(std::int64_t sink, Options options, Options metadata) {
  return c10::make_intrusive<ScriptWriter>(
      translate_errors([&] { return take_handed<std::unique_ptr<Sink>>(sink); }), options,
      metadata);
}

// `package` is the number of torch's object. An address would let a scripted program name any
// memory.
NameList fill_constants(std::int64_t package, std::string uri, bool strict, std::string verify,
                        std::int64_t threads, Options options) {
  return translate_errors([&] {
    auto& loader =
        *static_cast<torch::inductor::AOTIModelPackageLoader*>(take_handed<void*>(package));
    return NameList(tensorizer::load_constants(loader, uri, {strict, parse_verify(verify), threads},
                                               option_list(options))
                        .unexpected_keys);
  });
}

}  // namespace

void define_reader_internals(torch::Library& library) {
  const auto method = [](auto body) { return tensorizer::method<Internals>(body); };
  library.class_<ScriptCancel>("Cancel").def(torch::init<>()).def("cancel", &ScriptCancel::cancel);
  library.class_<Listing>("_Listing")
      .def_readonly("names", &Listing::names)
      .def_readonly("types", &Listing::types)
      .def_readonly("header_offsets", &Listing::header_offsets)
      .def_readonly("data_offsets", &Listing::data_offsets)
      .def_readonly("data_sizes", &Listing::data_sizes)
      .def_readonly("memory_sizes", &Listing::memory_sizes)
      .def_readonly("stored_as", &Listing::stored_as);
  library.class_<FilledTensors>("_FilledTensors")
      .def_readonly("tensors", &FilledTensors::tensors)
      .def_readonly("missing_keys", &FilledTensors::missing_keys)
      .def_readonly("unexpected_keys", &FilledTensors::unexpected_keys);
  library.class_<Internals>("_Internals")
      .def(torch::init<c10::intrusive_ptr<ScriptReader>>())
      .def_static("reader_of", &reader_of)
      .def_static("writer_to", &writer_to)
      .def_static("load_constants", &fill_constants)
      .def_static("is_traced", &is_traced)
      .def_static("is_fake", &is_fake)
      .def_static(
          "lacks_memory", +[](Tensors one) { return lacks_memory(one.at(0)); })
      // Null if the file has no metadata, and not if they have no text.
      .def("metadata", method(+[](FileReader& reader) {
             const std::optional<Metadata> stored = reader.metadata();
             return stored ? std::optional(string_dict(*stored)) : std::nullopt;
           }))
      .def("list",
           method(+[](FileReader& reader) { return c10::make_intrusive<Listing>(reader.list()); }))
      .def("version", method(+[](FileReader& reader) { return number(reader.format().version); }))
      .def("flags", method(+[](FileReader& reader) { return number(reader.format().flags); }))
      .def("claimed_size",
           method(+[](FileReader& reader) { return number(reader.format().claimed_size); }))
      .def("tensor_count",
           method(+[](FileReader& reader) { return number(reader.format().tensor_count); }))
      // Torch's name of the type, "float32".
      .def("type_name", method(+[](FileReader& reader, std::string name) {
             return dtype_name(reader.dtype(name));
           }))
      // The names for fill(), before which they must not be given out.
      .def("names_to_fill", method(+[](FileReader& reader) {
             const std::shared_ptr<OpenFile> file = reader.file_for_all();
             return NameList(std::vector<std::string>(file->names().begin(), file->names().end()));
           }))
      .def("fill", method(&fill_tensors))
      // Returns the tensors, and the module indices in their headers.
      .def("load_numbered",
           method(+[](FileReader& reader, std::optional<Numbers> numbers, OptionalDevice device,
                      OptionalType dtype, std::string verify, bool copy, std::int64_t threads) {
             const auto wanted = numbers ? std::optional(as_numbers(*numbers)) : std::nullopt;
             Tensors tensors =
                 reader.load_numbered(wanted, {device, dtype, parse_verify(verify), copy, threads});
             Numbers module_indices;
             for (std::uint32_t i = 0; i < tensors.size(); ++i) {
               module_indices.push_back(reader.headers().module_index(wanted ? (*wanted)[i] : i));
             }
             return std::make_tuple(std::move(tensors), std::move(module_indices));
           }))
      .def("load_ranges",
           method(+[](FileReader& reader, NameList names, std::vector<std::int64_t> starts,
                      Tensors outputs, std::optional<at::Tensor> arrived, std::string verify,
                      std::int64_t threads) {
             reader.load_ranges(string_vector(names), starts, outputs, arrived,
                                parse_verify(verify), threads);
           }))
      .def("need_until", method(+[](FileReader& reader, std::string name, std::int64_t element) {
             reader.need_until(name, element);
           }))
      .def("chunk_size", method(+[](FileReader& reader, std::string verify) {
             return number(reader.chunk_size(parse_verify(verify)));
           }))
      .def("chunk_digests",
           method(+[](FileReader& reader, std::string name) { return reader.chunk_digests(name); }))
      .def("remote_version", method(+[](FileReader& reader) { return reader.remote_version(); }))
      .def("signed_as", method(+[](FileReader& reader) { return reader.signed_as(); }))
      .def("detach_if_signed",
           method(+[](FileReader& reader, Tensors tensors) { reader.detach_if_signed(tensors); }))
      .def("can_map", method(+[](FileReader& reader) { return reader.can_map(); }))
      .def("header_suffices", method(+[](FileReader& reader, std::int64_t tensor) {
             return reader.header_suffices(static_cast<std::uint32_t>(tensor));
           }))
      .def("matches", method(+[](FileReader& reader, std::int64_t tensor, at::Tensor given) {
             return reader.matches(static_cast<std::uint32_t>(tensor), given);
           }))
      .def("verify", method(+[](FileReader& reader, std::string verify, std::int64_t threads) {
             reader.verify(parse_verify(verify), threads);
           }))
      .def("verify_memory",
           method(+[](FileReader& reader, NameList names, Tensors tensors, std::string verify) {
             reader.verify_memory(string_vector(names), tensors, parse_verify(verify));
           }))
      .def("bytes", method(+[](FileReader& reader, std::int64_t offset, std::int64_t size) {
             return reader.bytes(static_cast<std::uint64_t>(offset),
                                 static_cast<std::uint64_t>(size));
           }))
      // `names` are those to write, and `renamed` what they are called in the new file.
      .def("rewrite",
           method(+[](FileReader& reader, std::string uri, std::string hashes, Options options,
                      std::int64_t threads, std::optional<NameList> names, NameList renamed,
                      OptionalType dtype) {
             TensorChanges changes{.dtype = dtype};
             if (names) changes.names.emplace();
             for (std::size_t i = 0; names && i < names->size(); ++i) {
               changes.names->emplace(names->get(i), renamed.get(i));
             }
             reader.rewrite(uri, parse_hashes(hashes), option_list(options), threads,
                            std::move(changes));
           }))
      .def("make_delta",
           method(+[](FileReader& reader, c10::intrusive_ptr<ScriptReader> fresh, std::string uri,
                      std::string hashes, std::int64_t threads, Options options) {
             reader.make_delta(fresh->file(), uri, parse_hashes(hashes), option_list(options),
                               threads);
           }))
      .def("apply", method(+[](FileReader& reader, c10::intrusive_ptr<ScriptReader> base,
                               std::optional<std::string> uri, std::optional<std::string> hashes,
                               std::int64_t threads, Options options) {
             return reader.apply(base->file(), uri,
                                 hashes ? std::optional(parse_hashes(*hashes)) : std::nullopt,
                                 option_list(options), threads);
           }))
      .def("tells_the_same",
           method(+[](FileReader& reader, c10::intrusive_ptr<ScriptReader> other) {
             return reader.tells_the_same(other->file());
           }))
      .def("apply_in_memory",
           method(+[](FileReader& reader, NameList names, Tensors tensors, std::int64_t threads) {
             return reader.apply_in_memory(string_vector(names), tensors, threads);
           }))
      .def("prefetch", method(+[](FileReader& reader, std::optional<NameList> names,
                                  c10::intrusive_ptr<ScriptCancel> cancel) {
             cancel->run([&](Cancel& given) { reader.prefetch(string_vector(names), given); });
           }))
      .def("check_traceable",
           method(+[](FileReader& reader) { check_traceable(reader.uri(), reader.options()); }))
      // Returns the names, which may be those of all tensors, and the argument `traced` for them.
      .def("trace",
           method(+[](FileReader& reader, std::optional<NameList> names, OptionalType dtype) {
             Traced seen = trace(reader, string_vector(names), dtype);
             return std::make_tuple(NameList(std::move(seen.names)),
                                    NameList(std::move(seen.shapes)));
           }));
}

}  // namespace tensorizer::ops
