#include "ops/script_reader.h"

#include "codec/crc32.h"
#include "codec/hmac.h"
#include "engine/options.h"

namespace tensorizer::ops {

namespace {

const char* tensor_type_name(TensorType type) {
  switch (type) {
    case TensorType::Parameter:
      return "parameter";
    case TensorType::Buffer:
      return "buffer";
    case TensorType::StateDictEntry:
      break;
  }
  return "state_dict";
}

std::tuple<std::int64_t, std::int64_t> as_tuple(std::uint64_t one, std::uint64_t other) {
  return {static_cast<std::int64_t>(one), static_cast<std::int64_t>(other)};
}

using Names = c10::List<std::string>;
using Integers = std::vector<std::int64_t>;
using Device = std::optional<c10::Device>;
using Type = std::optional<c10::ScalarType>;
using Options = std::optional<StringDict>;

StringDict stored(FileReader& reader, std::string name) {
  const StoredTensor stored = reader.stored(name);
  StringDict dict;
  dict.insert("name", stored.name);
  dict.insert("type", tensor_type_name(stored.type));
  dict.insert("module_index", std::to_string(stored.module_index));
  dict.insert("header_offset", std::to_string(stored.header_offset));
  dict.insert("data_offset", std::to_string(stored.data_offset));
  dict.insert("data_size", std::to_string(stored.data_size));
  if (stored.crc32) dict.insert("crc32", to_hex(crc32_bytes(*stored.crc32)));
  if (stored.sha256) dict.insert("sha256", to_hex(*stored.sha256));
  return dict;
}

c10::Dict<std::string, double> stats_of(const FileReader& reader) {
  const LoadStats stats = reader.stats();
  const auto number = [](std::uint64_t value) { return static_cast<double>(value); };
  c10::Dict<std::string, double> dict;
  dict.insert("loads", number(stats.loads));
  dict.insert("tensors", number(stats.tensors));
  dict.insert("bytes", number(stats.bytes));
  dict.insert("seconds", stats.seconds);
  dict.insert("verify", stats.digest_seconds);
  dict.insert("copy", stats.copy_seconds);
  dict.insert("decrypt", stats.cipher_seconds);
  dict.insert("requests", number(stats.requests));
  dict.insert("connections", number(stats.connections));
  dict.insert("retries", number(stats.retries));
  dict.insert("received", number(stats.received));
  dict.insert("lookup", stats.lookup_seconds);
  dict.insert("connect", stats.connect_seconds);
  dict.insert("tls", stats.tls_seconds);
  dict.insert("first_byte", stats.first_byte_seconds);
  dict.insert("transfer", stats.transfer_seconds);
  return dict;
}

// Only the file gets these: a pickle keeps the options as they were given.
OptionList absolute_options(const Options& options) { return absolute_paths(option_list(options)); }

}  // namespace

ScriptReader::ScriptReader(std::string uri, std::optional<StringDict> options)
    : options_(std::move(options)), reader_(translate_errors([&] {
        return FileReader(std::move(uri), absolute_options(options_));
      })) {}

ScriptReader::ScriptReader(const at::Tensor& data, std::optional<StringDict> options)
    : options_(std::move(options)),
      reader_(translate_errors([&] { return FileReader(data, absolute_options(options_)); })) {}

ScriptReader::ScriptReader(std::shared_ptr<Source> source, std::optional<StringDict> options)
    : options_(std::move(options)), reader_(translate_errors([&] {
        return FileReader(std::move(source), absolute_options(options_));
      })) {}

ScriptReader::ScriptReader(std::string uri, std::optional<StringDict> options,
                           std::shared_ptr<Source> opened)
    : options_(std::move(options)), reader_(translate_errors([&] {
        return FileReader(std::move(uri), absolute_options(options_), std::move(opened));
      })) {}

c10::intrusive_ptr<ScriptReader> ScriptReader::restore(State state) {
  auto& [uri, options, data] = state;
  if (data) return c10::make_intrusive<ScriptReader>(*data, options);
  return c10::make_intrusive<ScriptReader>(std::move(uri), options);
}

ScriptReader::State ScriptReader::state() const {
  translate_errors([&] {
    if (reader_.is_given() || reader_.uri().starts_with("fd:")) {
      throw Error(ErrorKind::InvalidArgument,
                  "only a Reader that was opened by its path or URI can be pickled");
    }
    refuse_secrets(reader_.uri(), reader_.options(), "a pickled Reader");
  });
  const at::Tensor& data = reader_.data();
  return {reader_.uri(), options_.value_or(StringDict()),
          data.defined() ? std::optional(data) : std::nullopt};
}

void define_reader(torch::Library& library) {
  const auto none = [] { return torch::arg::none(); };
  using Self = c10::intrusive_ptr<ScriptReader>;
  library.class_<ScriptReader>("Reader")
      .def(torch::init<std::string, Options>(),
           "A file that is open for loading; it opens on first use.",
           {torch::arg("uri"), torch::arg("options") = none()})
      .def("names", method<ScriptReader>(+[](FileReader& reader) { return Names(reader.names()); }))
      .def("metadata", method<ScriptReader>(+[](FileReader& reader) {
             return string_dict(reader.metadata().value_or(Metadata()));
           }))
      .def("shape", method<ScriptReader>(+[](FileReader& reader, std::string name) {
             return reader.shape(name);
           }),
           "", {torch::arg("name")})
      .def("dtype", method<ScriptReader>(+[](FileReader& reader, std::string name) {
             return reader.dtype(name);
           }),
           "", {torch::arg("name")})
      .def("stored", method<ScriptReader>(&stored), "", {torch::arg("name")})
      .def("load",
           method<ScriptReader>(+[](FileReader& reader, std::optional<Names> names, Device device,
                                    Type dtype, std::string verify, bool copy,
                                    std::int64_t threads) {
             const auto wanted = string_vector(names);
             const LoadRequest request{device, dtype, parse_verify(verify), copy, threads};
             // Names are given out when the file has been checked.
             const std::vector<at::Tensor> loaded = reader.load(wanted, request);
             return tensor_dict(wanted ? *wanted : reader.names(), loaded);
           }),
           "",
           {torch::arg("names") = none(), torch::arg("device") = none(),
            torch::arg("dtype") = none(), torch::arg("verify") = "none", torch::arg("copy") = false,
            torch::arg("threads") = 0})
      .def("load_slices",
           method<ScriptReader>(+[](FileReader& reader, Names names, Integers tensors,
                                    Integers dims, Integers starts, Integers lengths,
                                    std::optional<Integers> steps, Device device, Type dtype,
                                    std::string verify, bool copy, std::int64_t threads) {
             const auto given = steps ? c10::OptionalArrayRef<std::int64_t>(*steps) : std::nullopt;
             return reader.load_slices(string_vector(names),
                                       sliced_dimensions(tensors, dims, starts, lengths, given),
                                       {device, dtype, parse_verify(verify), copy, threads});
           }),
           "",
           {torch::arg("names"), torch::arg("tensors"), torch::arg("dims"), torch::arg("starts"),
            torch::arg("lengths"), torch::arg("steps") = none(), torch::arg("device") = none(),
            torch::arg("dtype") = none(), torch::arg("verify") = "none", torch::arg("copy") = false,
            torch::arg("threads") = 0})
      .def("load_into",
           method<ScriptReader>(+[](FileReader& reader, Names names, std::vector<at::Tensor> out,
                                    std::string verify, std::int64_t threads, bool cast) {
             reader.load_into(string_vector(names), out, parse_verify(verify), threads, cast);
           }),
           "",
           {torch::arg("names"), torch::arg("out"), torch::arg("verify") = "none",
            torch::arg("threads") = 0, torch::arg("cast") = false})
      .def("digest",
           method<ScriptReader>(
               +[](FileReader& reader, std::int64_t threads, std::int64_t version, bool listed) {
                 return reader.digest(threads, version, listed);
               }),
           "", {torch::arg("threads") = 0, torch::arg("version") = 1, torch::arg("listed") = false})
      .def("rewrite",
           method<ScriptReader>(+[](FileReader& reader, std::string uri, std::string hashes,
                                    Options options, std::int64_t threads) {
             reader.rewrite(uri, parse_hashes(hashes), option_list(options), threads);
           }),
           "",
           {torch::arg("uri"), torch::arg("hashes") = "chunked", torch::arg("options") = none(),
            torch::arg("threads") = 0})
      .def("update",
           method<ScriptReader>(+[](FileReader& reader, std::string uri, std::int64_t threads) {
             const auto [fetched, kept] = reader.update(uri, threads);
             return as_tuple(fetched, kept);
           }),
           "", {torch::arg("uri"), torch::arg("threads") = 0})
      .def("stats", [](const Self& self) { return stats_of(self->file()); })
      .def("progress",
           [](const Self& self) {
             const auto [done, total] = self->file().progress();
             return as_tuple(done, total);
           })
      .def("cancel", [](const Self& self) { self->file().cancel(); })
      .def("close", [](const Self& self) { self->file().close(); })
      .def_pickle(
          [](const Self& self) { return self->state(); },
          [](ScriptReader::State state) { return ScriptReader::restore(std::move(state)); });
}

}  // namespace tensorizer::ops
