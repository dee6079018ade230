#include "python/shared_save.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

#include <algorithm>

#include "ops/translate_errors.h"
#include "transfer/files/saving.h"
#include "transfer/memory/memory.h"

namespace tensorizer {

namespace {

// Calls a method of SharedSave without the GIL.
template <auto method, typename... Arguments>
auto call(SharedSave& save, const Arguments&... arguments) {
  const pybind11::gil_scoped_release no_gil;
  return translate_errors([&] { return (save.*method)(arguments...); });
}

ConstBytes bytes_of(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_cpu() && tensor.scalar_type() == at::kByte && tensor.is_contiguous(),
              "bytes are a contiguous tensor of torch.uint8 on the CPU");
  return const_bytes(tensor);
}

std::unique_ptr<SharedSave> make(std::string uri, std::vector<std::string> names,
                                 std::vector<at::Tensor> tensors, const std::string& hashes,
                                 OptionList options, std::optional<Metadata> metadata) {
  const pybind11::gil_scoped_release no_gil;
  return translate_errors([&] {
    return shared_save({.uri = std::move(uri),
                        .names = std::move(names),
                        .tensors = std::move(tensors),
                        .hashes = parse_hashes(hashes),
                        .options = std::move(options),
                        .metadata = std::move(metadata)});
  });
}

std::vector<std::tuple<std::size_t, std::uint64_t, std::uint64_t>> ranges(const SharedSave& save,
                                                                          std::size_t section) {
  std::vector<std::tuple<std::size_t, std::uint64_t, std::uint64_t>> tuples;
  for (const DataRange& range : save.ranges(section)) {
    tuples.emplace_back(range.tensor, range.start, range.size);
  }
  return tuples;
}

at::Tensor write(SharedSave& save, std::size_t section, const at::Tensor& data) {
  const pybind11::gil_scoped_release no_gil;
  return translate_errors([&] {
    const std::vector<std::byte> digests = save.write(section, bytes_of(data));
    at::Tensor made = at::empty({static_cast<std::int64_t>(digests.size())}, at::kByte);
    std::ranges::copy(digests, tensor_bytes(made).begin());
    return made;
  });
}

void take(SharedSave& save, std::size_t section, const at::Tensor& digests) {
  const pybind11::gil_scoped_release no_gil;
  translate_errors([&] { save.take(section, bytes_of(digests)); });
}

}  // namespace

void define_shared_save(pybind11::module_& module) {
  pybind11::class_<SharedSave>(module, "SharedSave")
      .def(pybind11::init(torch::wrap_pybind_function(make)))
      .def("start",
           torch::wrap_pybind_function(call<&SharedSave::start, std::optional<std::string>>))
      .def("names", &SharedSave::names)
      .def("plan", &SharedSave::plan)
      .def("section_count", &SharedSave::section_count)
      .def("head_sections", &SharedSave::head_sections)
      .def("ranges", &ranges)
      .def("digest_sizes", &SharedSave::digest_sizes)
      .def("own", torch::wrap_pybind_function(call<&SharedSave::own, std::vector<std::size_t>>))
      .def("write", torch::wrap_pybind_function(write))
      .def("take", torch::wrap_pybind_function(take))
      .def("hand_in", torch::wrap_pybind_function(call<&SharedSave::hand_in>))
      .def("take_in", torch::wrap_pybind_function(call<&SharedSave::take_in, std::string>))
      .def("finish", torch::wrap_pybind_function(call<&SharedSave::finish>))
      .def("leave", torch::wrap_pybind_function(call<&SharedSave::leave>))
      .def("abort",
           [](SharedSave& save) {
             const pybind11::gil_scoped_release no_gil;
             save.abort();
           })
      .def("cancel", &SharedSave::cancel);
}

}  // namespace tensorizer
