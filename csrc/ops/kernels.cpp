#include "ops/kernels.h"

#include <ATen/core/PythonFallbackKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/PythonDispatcherTLS.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include "transfer/files/file_reader.h"
#include "transfer/files/file_writer.h"
#include "transfer/files/tracing.h"
#include "transfer/memory/dtype.h"

namespace tensorizer::ops {

namespace {

// Returns whether the tensor stands for another one, to which torch leads a call that it
// dispatches.
bool stands_for_another(const at::Tensor& tensor) {
  return tensor.key_set().has(c10::DispatchKey::Functionalize) ||
         tensor.key_set().has(c10::DispatchKey::FuncTorchGradWrapper);
}

bool is_subclass(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->is_python_dispatch();
}

bool is_of(at::TensorList tensors, bool (&kind)(const at::Tensor&)) {
  return std::any_of(tensors.begin(), tensors.end(), kind);
}

using c10::impl::TorchDispatchModeKey;
using c10::impl::TorchDispatchModeTLS;

// Returns whether calls are traced, or seen by a mode, instead of run.
bool is_seen() { return TorchDispatchModeTLS::any_modes_set() || is_traced(); }

[[noreturn]] void refuse_argument(const std::string& why) {
  translate_errors([&] { throw Error(ErrorKind::InvalidArgument, why); });
  __builtin_unreachable();
}

// Returns another op of the library, to be called through the dispatcher, so that tracers see it.
template <typename Signature>
c10::TypedOperatorHandle<Signature> dispatched(const char* name) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(("tensorizer::" + std::string(name)).c_str(), "")
      .typed<Signature>();
}

void refuse_traces_of_deltas() {
  if (is_seen()) refuse_argument("a compiler cannot trace what makes or applies deltas");
}

std::optional<std::int64_t> unless_default(std::int64_t threads) {
  return threads == 0 ? std::nullopt : std::optional(threads);
}

Traced traced_now(const std::string& uri, const std::optional<Strings>& names,
                  std::optional<c10::ScalarType> dtype, const Options& options) {
  return translate_errors([&] {
    FileReader reader(uri, option_list(options));
    return trace(reader, string_vector(names), dtype);
  });
}

// Calls load_tensors for a tracer, with the dtypes and shapes that the file holds now.
std::vector<at::Tensor> load_traced(const std::string& uri, const Traced& seen,
                                    std::optional<c10::Device> device,
                                    std::optional<c10::ScalarType> dtype, const std::string& verify,
                                    bool copy, std::int64_t threads, const Options& options) {
  return dispatched<decltype(load_tensors)>("load_tensors")
      .call(uri, Strings(seen.names), device, dtype, verify, copy, unless_default(threads), options,
            Strings(seen.shapes));
}

// Gives a call of load_tensors or load_slices without `traced` what the file holds now.
void add_traced(const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  const auto argument = [&](const char* name) -> c10::IValue& {
    const auto place = static_cast<std::size_t>(schema.argumentIndexWithName(name).value());
    return stack[stack.size() - schema.arguments().size() + place];
  };
  c10::IValue& traced = argument("traced");
  if (!traced.isNone()) return;
  traced = Strings(traced_now(argument("uri").toStringRef(), argument("names").to<Strings>(),
                              argument("dtype").to<std::optional<c10::ScalarType>>(),
                              argument("options").to<Options>())
                       .shapes);
}

// Does what torch's own kernel for PythonTLSSnapshot does.
void snapshot_and_go_on(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                        torch::jit::Stack* stack) {
  const at::impl::MaybeSetTLSOnEntryGuard guard;
  const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER,
                                  c10::DispatchKey::PythonTLSSnapshot);
  op.redispatchBoxed(keys & below, stack);
}

// Returns the device of all tensors; null if there are several devices, or no tensors.
std::optional<c10::Device> common_device(at::TensorList tensors) {
  const auto is_elsewhere = [&](const at::Tensor& t) { return t.device() != tensors[0].device(); };
  if (tensors.empty() || std::any_of(tensors.begin(), tensors.end(), is_elsewhere)) return {};
  return tensors[0].device();
}

}  // namespace

bool is_traced() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Functionalize) ||
         c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::PreDispatch) ||
         TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::PROXY) ||
         TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::FUNCTIONAL);
}

bool is_fake() {
  return TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::FAKE) && !is_traced();
}

void to_plain_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/,
                     torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

void before_subclasses(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                       torch::jit::Stack* stack) {
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  const bool has_subclass =
      std::any_of(arguments.begin(), arguments.end(), [](const c10::IValue& each) {
        if (each.isTensor()) return is_subclass(each.toTensor());
        return each.isTensorList() && is_of(each.toTensorVector(), is_subclass);
      });
  if (has_subclass && !is_seen()) return to_plain_kernel(op, keys, stack);
  snapshot_and_go_on(op, keys, stack);
}

void before_modes(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
  if (is_traced()) add_traced(op.schema(), *stack);
  snapshot_and_go_on(op, keys, stack);
}

void before_python_dispatcher(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                              torch::jit::Stack* stack) {
  if (is_traced()) add_traced(op.schema(), *stack);
  // As torch's own kernel for this key, which this one replaces.
  (*c10::impl::PythonDispatcherTLS::get_state())
      ->python_dispatcher(op, keys.remove(c10::DispatchKey::PythonDispatcher), stack);
}

TensorDict load(const std::string& uri, const std::optional<Strings>& names,
                std::optional<c10::Device> device, std::optional<c10::ScalarType> dtype,
                const std::string& verify, bool copy, std::int64_t threads,
                const Options& options) {
  if (is_seen()) {
    const Traced seen = traced_now(uri, names, dtype, options);
    return tensor_dict(seen.names,
                       load_traced(uri, seen, device, dtype, verify, copy, threads, options));
  }
  return translate_errors([&] {
    const LoadRequest request{device, dtype, parse_verify(verify), copy, threads};
    FileReader reader(uri, option_list(options));
    const auto wanted = string_vector(names);
    // Names are given out when the file has been checked.
    const std::vector<at::Tensor> loaded = reader.load(wanted, request);
    return tensor_dict(wanted ? *wanted : reader.names(), loaded);
  });
}

std::vector<at::Tensor> load_tensors(const std::string& uri, const Strings& names,
                                     std::optional<c10::Device> device,
                                     std::optional<c10::ScalarType> dtype,
                                     const std::string& verify, bool copy,
                                     std::optional<std::int64_t> threads, const Options& options,
                                     const std::optional<Strings>& traced) {
  return translate_errors([&] {
    const LoadRequest request{device, dtype, parse_verify(verify), copy, threads.value_or(0)};
    return FileReader(uri, option_list(options))
        .load(string_vector(names), request, string_vector(traced), Ties::Apart);
  });
}

std::vector<at::Tensor> load_slices(const std::string& uri, const Strings& names,
                                    at::IntArrayRef tensors, at::IntArrayRef dims,
                                    at::IntArrayRef starts, at::IntArrayRef lengths,
                                    at::OptionalIntArrayRef steps,
                                    std::optional<c10::Device> device,
                                    std::optional<c10::ScalarType> dtype, const std::string& verify,
                                    bool copy, std::optional<std::int64_t> threads,
                                    const Options& options, const std::optional<Strings>& traced) {
  return translate_errors([&] {
    const LoadRequest request{device, dtype, parse_verify(verify), copy, threads.value_or(0)};
    return FileReader(uri, option_list(options))
        .load_slices(string_vector(names), sliced_dimensions(tensors, dims, starts, lengths, steps),
                     request, string_vector(traced), Ties::Apart);
  });
}

void load_into(const std::string& uri, const Strings& names, at::TensorList out,
               const std::string& verify, std::int64_t threads, const Options& options, bool cast) {
  if (is_seen() || is_of(out, stands_for_another)) {
    const std::vector<at::Tensor> loaded =
        load_traced(uri, traced_now(uri, names, std::nullopt, options), common_device(out),
                    std::nullopt, verify, false, threads, options);
    if (loaded.size() != out.size()) {
      refuse_argument(std::to_string(loaded.size()) + " names and " + std::to_string(out.size()) +
                      " outputs");
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (loaded[i].sym_sizes() == out[i].sym_sizes() &&
          fits(loaded[i].scalar_type(), out[i].scalar_type(), cast)) {
        continue;
      }
      refuse_argument("the output for tensor " + quote(names.get(i)) +
                      " has another shape or dtype");
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      at::Tensor output = out[i];
      output.copy_(loaded[i]);
    }
    return;
  }
  translate_errors([&] {
    FileReader(uri, option_list(options))
        .load_into(string_vector(names), out.vec(), parse_verify(verify), threads, cast);
  });
}

void save(const std::string& uri, const TensorDict& tensors, const std::string& hashes,
          std::int64_t threads, const Options& options, const std::optional<StringDict>& metadata) {
  std::vector<std::string> names;
  std::vector<at::Tensor> values;
  names.reserve(tensors.size());
  values.reserve(tensors.size());
  for (const auto& item : tensors) {
    names.push_back(item.key());
    values.push_back(item.value());
  }
  if (is_fake()) {
    refuse_argument(
        "nothing can be saved under FakeTensorMode, where tensors have no values: save "
        "outside of it");
  }
  // A subclass would pass the call on once for each tensor that it wraps. So it is left to
  // save_tensors() to refuse it.
  if (is_seen() || is_of(values, stands_for_another)) {
    dispatched<decltype(save_tensors)>("save_tensors")
        .call(uri, Strings(names), values, hashes, unless_default(threads), options, metadata);
    return;
  }
  save_tensors(uri, Strings(names), values, hashes, threads, options, metadata);
}

void save_tensors(const std::string& uri, const Strings& names, at::TensorList tensors,
                  const std::string& hashes, std::optional<std::int64_t> threads,
                  const Options& options, const std::optional<StringDict>& metadata) {
  translate_errors([&] {
    Progress progress;
    Cancel cancel;
    tensorizer::save({.uri = uri,
                      .names = string_vector(names),
                      .tensors = tensors.vec(),
                      .hashes = parse_hashes(hashes),
                      .threads = threads.value_or(0),
                      .options = option_list(options),
                      .metadata = metadata_list(metadata)},
                     progress, cancel);
  });
}

Strings names(const std::string& uri, const Options& options) {
  return translate_errors([&] { return Strings(FileReader(uri, option_list(options)).names()); });
}

std::string digest(const std::string& uri, std::int64_t threads, const Options& options,
                   std::int64_t version, bool listed) {
  return translate_errors(
      [&] { return FileReader(uri, option_list(options)).digest(threads, version, listed); });
}

void verify(const std::string& uri, const std::string& verify, std::optional<std::int64_t> threads,
            const Options& options) {
  translate_errors([&] {
    FileReader(uri, option_list(options)).verify(parse_verify(verify), threads.value_or(0));
  });
}

void delta(const std::string& base, const std::string& fresh, const std::string& target,
           const std::string& hashes, std::int64_t threads, const Options& base_options,
           const Options& new_options, const Options& target_options) {
  refuse_traces_of_deltas();
  translate_errors([&] {
    FileReader newer(fresh, option_list(new_options));
    FileReader(base, option_list(base_options))
        .make_delta(newer, target, parse_hashes(hashes), option_list(target_options), threads);
  });
}

bool apply(const std::string& delta, const std::string& base,
           const std::optional<std::string>& target, const std::optional<std::string>& hashes,
           std::int64_t threads, const Options& delta_options, const Options& base_options,
           const Options& target_options) {
  refuse_traces_of_deltas();
  return translate_errors([&] {
    FileReader older(base, option_list(base_options));
    return FileReader(delta, option_list(delta_options))
        .apply(older, target, hashes ? std::optional(parse_hashes(*hashes)) : std::nullopt,
               option_list(target_options), threads);
  });
}

bool apply_into(const std::string& delta, const Strings& names, at::TensorList tensors,
                std::int64_t threads, const Options& options) {
  refuse_traces_of_deltas();
  return translate_errors([&] {
    return FileReader(delta, option_list(options))
        .apply_in_memory(string_vector(names), tensors.vec(), threads);
  });
}

}  // namespace tensorizer::ops
