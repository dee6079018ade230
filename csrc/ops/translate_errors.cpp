#include "ops/translate_errors.h"

#include "base/cancel.h"

namespace tensorizer {

OptionList option_list(const std::optional<StringDict>& options) {
  OptionList list;
  if (!options) return list;
  for (const auto& option : *options) list.emplace_back(option.key(), option.value());
  return list;
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
