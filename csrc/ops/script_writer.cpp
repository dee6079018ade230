#include "ops/script_writer.h"

#include <limits>

namespace tensorizer::ops {

namespace {

AddedTensor added_tensor(std::string name, at::Tensor tensor, std::int64_t type,
                         std::int64_t module_index) {
  if (type < 0 || type > static_cast<std::int64_t>(TensorType::StateDictEntry)) {
    throw Error(ErrorKind::InvalidArgument,
                "type is " + std::to_string(type) +
                    ", and must be 0 (parameter), 1 (buffer) or 2 (state-dict entry)");
  }
  if (module_index < 0 || module_index > std::numeric_limits<std::uint16_t>::max()) {
    throw Error(ErrorKind::InvalidArgument, "module_index is " + std::to_string(module_index) +
                                                ", and must be from 0 to 65535");
  }
  return {std::move(name), std::move(tensor), static_cast<TensorType>(type),
          static_cast<std::uint16_t>(module_index)};
}

void add_all(FileWriter& writer, c10::List<std::string> names, std::vector<at::Tensor> tensors,
             c10::List<std::int64_t> types, c10::List<std::int64_t> module_indices) {
  if (tensors.size() != names.size() || types.size() != names.size() ||
      module_indices.size() != names.size()) {
    throw Error(ErrorKind::InvalidArgument,
                "names, tensors, types and module indices differ in number");
  }
  std::vector<AddedTensor> added;
  added.reserve(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    added.push_back(
        added_tensor(names.get(i), std::move(tensors[i]), types.get(i), module_indices.get(i)));
  }
  writer.add(added);
}

const char* state_name(FileWriter::State state) {
  switch (state) {
    case FileWriter::State::Open:
      return "open";
    case FileWriter::State::Closed:
      return "closed";
    case FileWriter::State::Aborted:
      break;
  }
  return "aborted";
}

}  // namespace

ScriptWriter::ScriptWriter(std::string uri, std::optional<StringDict> options,
                           std::optional<StringDict> metadata)
    : writer_(translate_errors([&] {
        return std::make_unique<FileWriter>(uri, option_list(options), metadata_list(metadata));
      })) {}

ScriptWriter::ScriptWriter(std::unique_ptr<Sink> sink, std::optional<StringDict> options,
                           std::optional<StringDict> metadata)
    : writer_(translate_errors([&] {
        return std::make_unique<FileWriter>(std::move(sink), option_list(options),
                                            metadata_list(metadata));
      })) {}

void define_writer(torch::Library& library) {
  const auto none = [] { return torch::arg::none(); };
  using Self = c10::intrusive_ptr<ScriptWriter>;
  library.class_<ScriptWriter>("Writer")
      .def(torch::init<std::string, std::optional<StringDict>, std::optional<StringDict>>(),
           "Takes tensors one at a time; the target appears with close().",
           {torch::arg("uri"), torch::arg("options") = none(), torch::arg("metadata") = none()})
      .def("add",
           method<ScriptWriter>(+[](FileWriter& writer, std::string name, at::Tensor tensor,
                                    std::int64_t type, std::int64_t module_index) {
             const AddedTensor added =
                 added_tensor(std::move(name), std::move(tensor), type, module_index);
             writer.add({&added, 1});
           }),
           "",
           {torch::arg("name"), torch::arg("tensor"), torch::arg("type") = 2,
            torch::arg("module_index") = 0})
      .def("_add_all", method<ScriptWriter>(&add_all))
      .def("_flush", method<ScriptWriter>(+[](FileWriter& writer) { writer.flush(); }))
      // "open", "closed" or "aborted", and how many tensors were added.
      .def("_state",
           [](const Self& self) {
             return std::tuple<std::string, std::int64_t>(
                 state_name(self->file().state()),
                 static_cast<std::int64_t>(self->file().tensor_count()));
           })
      .def("progress",
           [](const Self& self) {
             const auto [done, total] = self->file().progress();
             return std::tuple(static_cast<std::int64_t>(done), static_cast<std::int64_t>(total));
           })
      .def("cancel", [](const Self& self) { self->file().cancel(); })
      .def("close", method<ScriptWriter>(+[](FileWriter& writer) { writer.close(); }))
      .def("abort", method<ScriptWriter>(+[](FileWriter& writer) { writer.abort(); }));
}

}  // namespace tensorizer::ops
