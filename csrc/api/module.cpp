#include "tensorizer_ops/module.h"

#include <ATen/core/grad_mode.h>

#include "transfer/files/fill.h"

namespace tensorizer {

namespace {

// A place in a module that holds a tensor.
struct Slot {
  torch::jit::Module owner;
  std::string attribute;
};

void find_slots(const torch::jit::Module& module, const std::string& prefix,
                std::vector<std::string>& names, std::vector<at::Tensor>& tensors,
                std::vector<Slot>& slots) {
  const auto add = [&](const auto& named) {
    names.push_back(prefix + named.name);
    tensors.push_back(named.value);
    slots.push_back({module, named.name});
  };
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) add(parameter);
  for (const auto& buffer : module.named_buffers(/*recurse=*/false)) add(buffer);
  for (const auto& child : module.named_children()) {
    find_slots(child.value, prefix + child.name + ".", names, tensors, slots);
  }
}

}  // namespace

IncompatibleKeys load_into(torch::jit::Module& module, const std::string& uri,
                           const FillRequest& request, const OptionList& options) {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
  std::vector<Slot> slots;
  find_slots(module, "", names, tensors, slots);
  FileReader reader(uri, options);
  Filled filled = fill(reader, names, tensors, request);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const at::Tensor& tensor = filled.tensors[i];
    if (tensor.is_same(tensors[i])) continue;
    if (tensors[i].requires_grad()) tensor.set_requires_grad(true);
    slots[i].owner.setattr(slots[i].attribute, tensor);
  }
  return std::move(filled.keys);
}

}  // namespace tensorizer
