// Translates errors and values at the border between the library and torch.
#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <c10/util/OptionalArrayRef.h>

#include <new>
#include <optional>
#include <string>
#include <vector>

#include "base/calls.h"
#include "base/error.h"
#include "base/hooks.h"
#include "engine/options.h"
#include "tensorizer_ops/reader.h"

namespace tensorizer {

// Runs `body` as a call of the library. An Error that leaves it becomes the host's own exception if
// a host has set a hook.
template <typename Body>
auto translate_errors(const Body& body) -> decltype(body()) {
  try {
    const Call call;
    return body();
  } catch (const Error& error) {
    raise(error);
  } catch (const std::bad_alloc&) {
    raise(Error(ErrorKind::OutOfMemory, "there is not enough memory for this"));
  }
}

// Makes a method of a class of TorchScript: it calls `body` with the file of the object.
template <typename Class, typename File, typename Result, typename... Arguments>
auto method(Result (*body)(File&, Arguments...)) {
  return [body](const c10::intrusive_ptr<Class>& self, Arguments... arguments) {
    return translate_errors([&] { return body(self->file(), std::move(arguments)...); });
  };
}

using StringDict = c10::Dict<std::string, std::string>;
using TensorDict = c10::Dict<std::string, at::Tensor>;

OptionList option_list(const std::optional<StringDict>& options);

// Takes any list or map of pairs of texts.
template <typename Pairs>
StringDict string_dict(const Pairs& pairs) {
  StringDict dict;
  for (const auto& [name, value] : pairs) dict.insert(name, value);
  return dict;
}

// Returns null for null, which is not the same as an empty dict.
std::optional<Metadata> metadata_list(const std::optional<StringDict>& metadata);

std::vector<std::string> string_vector(const c10::List<std::string>& strings);

std::optional<std::vector<std::string>> string_vector(
    const std::optional<c10::List<std::string>>& strings);

// Throws InvalidArgument if the lists differ in length. All steps are 1 if they are not given.
std::vector<SlicedDimension> sliced_dimensions(c10::IntArrayRef tensors, c10::IntArrayRef dims,
                                               c10::IntArrayRef starts, c10::IntArrayRef lengths,
                                               c10::OptionalArrayRef<std::int64_t> steps);

TensorDict tensor_dict(const std::vector<std::string>& names,
                       const std::vector<at::Tensor>& tensors);

}  // namespace tensorizer
