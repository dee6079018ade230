// The kernels of torch.ops.tensorizer: thin forms of FileReader and save().
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "ops/translate_errors.h"

namespace tensorizer::ops {

using Strings = c10::List<std::string>;
using Options = std::optional<StringDict>;

// Returns whether a compiler records the calls of ops on this thread.
bool is_traced();
// Returns whether tensors have no values on this thread, because FakeTensorMode is set and nothing
// is traced.
bool is_fake();

// Calls the kernel for plain tensors, which refuses others by name. It is for the keys of tensors
// without memory of their own, of which torch would say that it lacks a kernel.
void to_plain_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack);
// Outside of traces, calls the kernel for plain tensors if an argument is a subclass that operators
// are dispatched to: it might pass the call on once for each tensor that it wraps. It is for the
// first key of such tensors, which no mode of autograd excludes.
void before_subclasses(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                       torch::jit::Stack* stack);
// Give load_tensors and load_slices their argument `traced` before a compiler records the call.
// They are for the first keys of the modes that record: PythonTLSSnapshot, and PythonDispatcher.
void before_modes(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);
void before_python_dispatcher(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                              torch::jit::Stack* stack);

TensorDict load(const std::string& uri, const std::optional<Strings>& names,
                std::optional<c10::Device> device, std::optional<c10::ScalarType> dtype,
                const std::string& verify, bool copy, std::int64_t threads, const Options& options);

std::vector<at::Tensor> load_tensors(const std::string& uri, const Strings& names,
                                     std::optional<c10::Device> device,
                                     std::optional<c10::ScalarType> dtype,
                                     const std::string& verify, bool copy,
                                     std::optional<std::int64_t> threads, const Options& options,
                                     const std::optional<Strings>& traced);

std::vector<at::Tensor> load_slices(const std::string& uri, const Strings& names,
                                    at::IntArrayRef tensors, at::IntArrayRef dims,
                                    at::IntArrayRef starts, at::IntArrayRef lengths,
                                    at::OptionalIntArrayRef steps,
                                    std::optional<c10::Device> device,
                                    std::optional<c10::ScalarType> dtype, const std::string& verify,
                                    bool copy, std::optional<std::int64_t> threads,
                                    const Options& options, const std::optional<Strings>& traced);

void load_into(const std::string& uri, const Strings& names, at::TensorList out,
               const std::string& verify, std::int64_t threads, const Options& options, bool cast);

void save(const std::string& uri, const TensorDict& tensors, const std::string& hashes,
          std::int64_t threads, const Options& options, const std::optional<StringDict>& metadata);

void save_tensors(const std::string& uri, const Strings& names, at::TensorList tensors,
                  const std::string& hashes, std::optional<std::int64_t> threads,
                  const Options& options, const std::optional<StringDict>& metadata);

Strings names(const std::string& uri, const Options& options);

std::string digest(const std::string& uri, std::int64_t threads, const Options& options,
                   std::int64_t version, bool listed);

void verify(const std::string& uri, const std::string& verify, std::optional<std::int64_t> threads,
            const Options& options);

void delta(const std::string& base, const std::string& fresh, const std::string& target,
           const std::string& hashes, std::int64_t threads, const Options& base_options,
           const Options& new_options, const Options& target_options);

bool apply(const std::string& delta, const std::string& base,
           const std::optional<std::string>& target, const std::optional<std::string>& hashes,
           std::int64_t threads, const Options& delta_options, const Options& base_options,
           const Options& target_options);

bool apply_into(const std::string& delta, const Strings& names, at::TensorList tensors,
                std::int64_t threads, const Options& options);

}  // namespace tensorizer::ops
