#include "ops/kernels.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "transfer/reader.h"
#include "transfer/writer.h"

namespace tensorizer::ops {

namespace {

LoadRequest load_request(std::optional<c10::Device> device, std::optional<c10::ScalarType> dtype,
                         const std::string& verify, bool copy, std::int64_t threads) {
  return {device, dtype, parse_verify(verify), copy, threads};
}

// What a compiler traces with, or holds back: such a tensor has no memory to fill.
bool is_symbolic(const at::Tensor& tensor) {
  const c10::DispatchKeySet keys = tensor.key_set();
  return tensor.is_meta() || keys.has(c10::DispatchKey::Python) ||
         keys.has(c10::DispatchKey::Functionalize) || !tensor.has_storage();
}

}  // namespace

TensorDict load(const std::string& uri, const std::optional<Strings>& names,
                std::optional<c10::Device> device, std::optional<c10::ScalarType> dtype,
                const std::string& verify, bool copy, std::int64_t threads,
                const Options& options) {
  return at_border([&] {
    const LoadRequest request = load_request(device, dtype, verify, copy, threads);
    Reader reader(uri, option_list(options));
    const auto wanted = string_vector(names);
    return tensor_dict(wanted ? *wanted : reader.names(), reader.load(wanted, request));
  });
}

std::vector<at::Tensor> load_tensors(const std::string& uri, const Strings& names,
                                     std::optional<c10::Device> device,
                                     std::optional<c10::ScalarType> dtype,
                                     const std::string& verify, bool copy, std::int64_t threads,
                                     const Options& options) {
  return at_border([&] {
    const LoadRequest request = load_request(device, dtype, verify, copy, threads);
    return Reader(uri, option_list(options)).load(string_vector(names), request);
  });
}

void load_into(const std::string& uri, const Strings& names, at::TensorList out,
               const std::string& verify, std::int64_t threads, const Options& options) {
  if (std::any_of(out.begin(), out.end(), is_symbolic)) {
    // Through the dispatcher, so that whoever traces sees a load and copies.
    static const auto load_op =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("tensorizer::load_tensors", "")
            .typed<decltype(load_tensors)>();
    const std::vector<at::Tensor> loaded = load_op.call(uri, names, std::nullopt, std::nullopt,
                                                        verify, false, threads, options);
    for (std::size_t i = 0; i < out.size(); ++i) {
      at::Tensor output = out[i];
      output.copy_(loaded[i]);
    }
    return;
  }
  at_border([&] {
    Reader(uri, option_list(options))
        .load_into(string_vector(names), out.vec(), parse_verify(verify), threads);
  });
}

void save(const std::string& uri, const TensorDict& tensors, const std::string& hashes,
          std::int64_t threads, const Options& options) {
  at_border([&] {
    std::vector<std::string> names;
    std::vector<at::Tensor> values;
    names.reserve(tensors.size());
    values.reserve(tensors.size());
    for (const auto& item : tensors) {
      names.push_back(item.key());
      values.push_back(item.value());
    }
    tensorizer::save(uri, names, values, parse_hashes(hashes), threads,
                     option_list(options));
  });
}

void save_tensors(const std::string& uri, const Strings& names, at::TensorList tensors,
                  const std::string& hashes, std::int64_t threads, const Options& options) {
  at_border([&] {
    tensorizer::save(uri, string_vector(names), tensors.vec(), parse_hashes(hashes),
                     threads, option_list(options));
  });
}

Strings names(const std::string& uri, const Options& options) {
  return at_border([&] { return Strings(Reader(uri, option_list(options)).names()); });
}

void verify(const std::string& uri, const std::string& verify, std::int64_t threads,
            const Options& options) {
  at_border([&] {
    Reader(uri, option_list(options)).verify(parse_verify(verify), threads);
  });
}

}  // namespace tensorizer::ops
