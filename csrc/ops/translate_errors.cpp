#include "ops/translate_errors.h"

#include "base/cancel.h"

namespace tensorizer {

OptionList option_list(const std::optional<StringDict>& options) {
  OptionList list;
  if (!options) return list;
  for (const auto& option : *options) list.emplace_back(option.key(), option.value());
  return list;
}

std::optional<Metadata> metadata_list(const std::optional<StringDict>& metadata) {
  return metadata ? std::optional(option_list(metadata)) : std::nullopt;
}

std::vector<std::string> string_vector(const c10::List<std::string>& strings) {
  std::vector<std::string> vector;
  vector.reserve(strings.size());
  for (std::size_t i = 0; i < strings.size(); ++i) vector.push_back(strings.get(i));
  return vector;
}

std::optional<std::vector<std::string>> string_vector(
    const std::optional<c10::List<std::string>>& strings) {
  if (!strings) return std::nullopt;
  return string_vector(*strings);
}

std::vector<SlicedDimension> sliced_dimensions(c10::IntArrayRef tensors, c10::IntArrayRef dims,
                                               c10::IntArrayRef starts, c10::IntArrayRef lengths,
                                               c10::OptionalArrayRef<std::int64_t> steps) {
  const std::size_t count = tensors.size();
  if (dims.size() != count || starts.size() != count || lengths.size() != count ||
      (steps && steps->size() != count)) {
    throw Error(ErrorKind::InvalidArgument,
                "tensors, dims, starts, lengths and steps differ in number");
  }
  std::vector<SlicedDimension> slices;
  slices.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    slices.push_back({tensors[i], dims[i], starts[i], lengths[i], steps ? (*steps)[i] : 1});
  }
  return slices;
}

TensorDict tensor_dict(const std::vector<std::string>& names,
                       const std::vector<at::Tensor>& tensors) {
  TensorDict dict;
  dict.reserve(names.size());
  Cancel cancel;
  Pace pace(cancel);
  for (std::size_t i = 0; i < names.size(); ++i) {
    pace.step();
    dict.insert(names[i], tensors[i]);
  }
  return dict;
}

}  // namespace tensorizer
