#include "ops/script_reader.h"

#include "codec/crc32.h"
#include "codec/hmac.h"

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

std::tuple<std::int64_t, std::int64_t> as_tuple(std::pair<std::uint64_t, std::uint64_t> progress) {
  return {static_cast<std::int64_t>(progress.first), static_cast<std::int64_t>(progress.second)};
}

}  // namespace

ScriptReader::ScriptReader(std::string uri, std::optional<StringDict> options)
    : options_(std::move(options)),
      reader_(translate_errors([&] { return FileReader(std::move(uri), option_list(options_)); })) {
}

ScriptReader::ScriptReader(const at::Tensor& data, std::optional<StringDict> options)
    : options_(std::move(options)),
      reader_(translate_errors([&] { return FileReader(data, option_list(options_)); })) {}

ScriptReader::ScriptReader(std::unique_ptr<Source> source, std::optional<StringDict> options)
    : options_(std::move(options)),
      reader_(
          translate_errors([&] { return FileReader(std::move(source), option_list(options_)); })) {}

ScriptReader::ScriptReader(std::string uri, std::optional<StringDict> options,
                           std::shared_ptr<Source> opened)
    : options_(std::move(options)), reader_(translate_errors([&] {
        return FileReader(std::move(uri), option_list(options_), std::move(opened));
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

c10::List<std::string> ScriptReader::names() {
  return translate_errors([&] { return c10::List<std::string>(reader_.names()); });
}

StringDict ScriptReader::metadata() {
  return translate_errors([&] { return string_dict(reader_.metadata().value_or(Metadata())); });
}

std::vector<std::int64_t> ScriptReader::shape(std::string name) {
  return translate_errors([&] { return reader_.shape(name); });
}

c10::ScalarType ScriptReader::dtype(std::string name) {
  return translate_errors([&] { return reader_.dtype(name); });
}

StringDict ScriptReader::stored(std::string name) {
  return translate_errors([&] {
    const StoredTensor stored = reader_.stored(name);
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
  });
}

TensorDict ScriptReader::load(std::optional<c10::List<std::string>> names,
                              std::optional<c10::Device> device,
                              std::optional<c10::ScalarType> dtype, std::string verify, bool copy,
                              std::int64_t threads) {
  return translate_errors([&] {
    const LoadRequest request{device, dtype, parse_verify(verify), copy, threads};
    const auto wanted = string_vector(names);
    return tensor_dict(wanted ? *wanted : reader_.names(), reader_.load(wanted, request));
  });
}

std::vector<at::Tensor> ScriptReader::load_slices(
    c10::List<std::string> names, Integers tensors, Integers dims, Integers starts,
    Integers lengths, std::optional<Integers> steps, std::optional<c10::Device> device,
    std::optional<c10::ScalarType> dtype, std::string verify, bool copy, std::int64_t threads) {
  return translate_errors([&] {
    const auto given = steps ? c10::OptionalArrayRef<std::int64_t>(*steps) : std::nullopt;
    return reader_.load_slices(string_vector(names),
                               sliced_dimensions(tensors, dims, starts, lengths, given),
                               {device, dtype, parse_verify(verify), copy, threads});
  });
}

void ScriptReader::load_into(c10::List<std::string> names, std::vector<at::Tensor> out,
                             std::string verify, std::int64_t threads, bool cast) {
  translate_errors(
      [&] { reader_.load_into(string_vector(names), out, parse_verify(verify), threads, cast); });
}

std::string ScriptReader::digest(std::int64_t threads, std::int64_t version, bool listed) {
  return translate_errors([&] { return reader_.digest(threads, version, listed); });
}

void ScriptReader::rewrite(std::string uri, std::string hashes, std::optional<StringDict> options,
                           std::int64_t threads) {
  translate_errors(
      [&] { reader_.rewrite(uri, parse_hashes(hashes), option_list(options), threads); });
}

std::tuple<std::int64_t, std::int64_t> ScriptReader::update(std::string uri, std::int64_t threads) {
  return translate_errors([&] {
    const auto [fetched, kept] = reader_.update(uri, threads);
    return std::tuple(static_cast<std::int64_t>(fetched), static_cast<std::int64_t>(kept));
  });
}

c10::Dict<std::string, double> ScriptReader::stats() {
  const LoadStats stats = reader_.stats();
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

std::tuple<std::int64_t, std::int64_t> ScriptReader::progress() {
  return as_tuple(reader_.progress());
}

void ScriptReader::cancel() { reader_.cancel(); }

void ScriptReader::close() { reader_.close(); }

void define_reader(torch::Library& library) {
  const auto none = [] { return torch::arg::none(); };
  library.class_<ScriptReader>("Reader")
      .def(torch::init<std::string, std::optional<StringDict>>(),
           "A file that is open for loading; it opens on first use.",
           {torch::arg("uri"), torch::arg("options") = none()})
      .def("names", &ScriptReader::names)
      .def("metadata", &ScriptReader::metadata)
      .def("shape", &ScriptReader::shape, "", {torch::arg("name")})
      .def("dtype", &ScriptReader::dtype, "", {torch::arg("name")})
      .def("stored", &ScriptReader::stored, "", {torch::arg("name")})
      .def("load", &ScriptReader::load, "",
           {torch::arg("names") = none(), torch::arg("device") = none(),
            torch::arg("dtype") = none(), torch::arg("verify") = "none", torch::arg("copy") = false,
            torch::arg("threads") = 0})
      .def("load_slices", &ScriptReader::load_slices, "",
           {torch::arg("names"), torch::arg("tensors"), torch::arg("dims"), torch::arg("starts"),
            torch::arg("lengths"), torch::arg("steps") = none(), torch::arg("device") = none(),
            torch::arg("dtype") = none(), torch::arg("verify") = "none", torch::arg("copy") = false,
            torch::arg("threads") = 0})
      .def("load_into", &ScriptReader::load_into, "",
           {torch::arg("names"), torch::arg("out"), torch::arg("verify") = "none",
            torch::arg("threads") = 0, torch::arg("cast") = false})
      .def("digest", &ScriptReader::digest, "",
           {torch::arg("threads") = 0, torch::arg("version") = 1, torch::arg("listed") = false})
      .def("rewrite", &ScriptReader::rewrite, "",
           {torch::arg("uri"), torch::arg("hashes") = "all", torch::arg("options") = none(),
            torch::arg("threads") = 0})
      .def("update", &ScriptReader::update, "", {torch::arg("uri"), torch::arg("threads") = 0})
      .def("stats", &ScriptReader::stats)
      .def("progress", &ScriptReader::progress)
      .def("cancel", &ScriptReader::cancel)
      .def("close", &ScriptReader::close)
      .def_pickle(
          [](const c10::intrusive_ptr<ScriptReader>& reader) { return reader->state(); },
          [](ScriptReader::State state) { return ScriptReader::restore(std::move(state)); });
}

}  // namespace tensorizer::ops
