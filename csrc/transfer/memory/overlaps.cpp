#include "transfer/memory/overlaps.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <tuple>

#include "transfer/memory/blocks.h"
#include "transfer/memory/memory.h"
#include "transfer/memory/ties.h"

namespace tensorizer {

namespace {

// The addresses from the first to the last element of an output.
struct Addresses {
  std::size_t place;
  c10::Device device;
  std::uintptr_t begin;
  std::uintptr_t end;
};

Addresses addresses_of(std::size_t place, const at::Tensor& output) {
  const std::uintptr_t begin = address_of(output);
  return {place, output.device(), begin, begin + extent(output)};
}

// Returns false only if no two elements of a tensor share memory.
bool may_overlap_itself(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return false;
  std::vector<std::pair<std::int64_t, std::int64_t>> dimensions;  // stride and size
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1) dimensions.emplace_back(tensor.stride(i), tensor.size(i));
  }
  std::ranges::sort(dimensions);
  std::int64_t last = 0;  // the offset of the last element in the dimensions so far
  for (const auto& [stride, size] : dimensions) {
    if (stride <= last) return true;
    last += stride * (size - 1);
  }
  return false;
}

std::vector<Addresses> all_addresses(std::span<const at::Tensor> outputs) {
  std::vector<Addresses> all;
  all.reserve(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].is_meta() && outputs[i].numel() > 0) all.push_back(addresses_of(i, outputs[i]));
  }
  std::ranges::sort(all, {}, [](const Addresses& one) {
    return std::tuple(one.device.type(), one.device.index(), one.begin, one.place);
  });
  return all;
}

// Returns how many of them from `begin` on are connected by overlaps.
std::size_t group_size(std::span<const Addresses> all, std::size_t begin) {
  std::uintptr_t end = all[begin].end;
  std::size_t next = begin + 1;
  while (next < all.size() && all[next].device == all[begin].device && all[next].begin < end) {
    end = std::max(end, all[next++].end);
  }
  return next - begin;
}

bool are_one_tensor(std::span<const Addresses> group, std::span<const at::Tensor> outputs) {
  std::vector<at::Tensor> tensors;
  for (const Addresses& one : group) tensors.push_back(outputs[one.place]);
  return std::ranges::all_of(find_ties(tensors), [](std::size_t first) { return first == 0; });
}

}  // namespace

OverlappingOutputs::OverlappingOutputs(std::vector<at::Tensor>& outputs) {
  const std::vector<Addresses> all = all_addresses(outputs);
  for (std::size_t begin = 0; begin < all.size();) {
    const std::span group = std::span(all).subspan(begin, group_size(all, begin));
    begin += group.size();
    const bool is_one = group.size() == 1 || are_one_tensor(group, outputs);
    if (is_one && !may_overlap_itself(outputs[group[0].place])) continue;
    for (const Addresses& one : group) {
      at::Tensor& output = outputs[one.place];
      const at::Tensor loaded =
          taking_memory(output.nbytes(), "memory on " + output.device().str(),
                        [&] { return at::empty(output.sizes(), output.options()); });
      outputs_.push_back({one.place, std::exchange(output, loaded), loaded});
    }
  }
}

void OverlappingOutputs::copy_outputs(Cancel& cancel) const {
  const at::NoGradGuard no_grad;
  for (const Output& output : outputs_) copy_elements(output.loaded, output.memory, cancel);
}

std::size_t OverlappingOutputs::fill(Cancel& cancel) const {
  const at::NoGradGuard no_grad;
  for (const Output& output : outputs_) copy_elements(output.memory, output.loaded, cancel);
  for (const Output& output : outputs_) {
    cancel.check();
    if (!has_same_bytes(output.memory, output.loaded)) return output.place;
  }
  return none;
}

void OverlappingOutputs::blank() const noexcept {
  for (const Output& output : outputs_) {
    try {
      make_zero(output.memory);
    } catch (...) {
    }
  }
}

}  // namespace tensorizer
