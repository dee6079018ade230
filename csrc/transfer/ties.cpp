#include "transfer/ties.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace tensorizer {

namespace {

// Takes a few milliseconds to copy.
constexpr std::size_t kPiece = 16 << 20;

}  // namespace

std::vector<std::size_t> find_ties(std::span<const at::Tensor> tensors) {
  using Identity = std::tuple<const void*, std::int64_t, std::vector<std::int64_t>>;
  std::map<Identity, std::size_t> first;
  std::vector<std::size_t> ties;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    std::vector<std::int64_t> shape = tensor.sizes().vec();
    shape.insert(shape.end(), tensor.strides().begin(), tensor.strides().end());
    // A conjugate view has other values in the same memory.
    shape.insert(shape.end(), {static_cast<std::int64_t>(tensor.scalar_type()), tensor.is_conj(),
                               tensor.is_neg()});
    const Identity identity{tensor.storage().unsafeGetStorageImpl(), tensor.storage_offset(),
                            std::move(shape)};
    ties.push_back(first.emplace(identity, i).first->second);
  }
  return ties;
}

at::Tensor same_memory(const at::Tensor& tensor) {
  at::Tensor other = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(tensor.storage()),
                                                              tensor.key_set(), tensor.dtype());
  c10::TensorImpl* const impl = other.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  impl->set_version_counter(tensor.unsafeGetTensorImpl()->version_counter());
  return other;
}

bool has_same_bytes(const at::Tensor& tensor, const at::Tensor& other) {
  if (tensor.is_meta() || tensor.numel() == 0) return true;
  const auto bytes = [](const at::Tensor& each) {
    return each.resolve_conj().resolve_neg().contiguous().view(-1).view(at::kByte);
  };
  return bytes(tensor).equal(bytes(other));
}

void copy_elements(const at::Tensor& to, const at::Tensor& from, Cancel& cancel) {
  cancel.check();
  const auto sizes = to.sizes();
  const auto largest = std::max_element(sizes.begin(), sizes.end());
  if (to.nbytes() <= kPiece || *largest == 1) {
    to.copy_(from);
    return;
  }
  const std::int64_t dimension = largest - sizes.begin();
  const std::int64_t half = *largest / 2;
  copy_elements(to.narrow(dimension, 0, half), from.narrow(dimension, 0, half), cancel);
  copy_elements(to.narrow(dimension, half, *largest - half),
                from.narrow(dimension, half, *largest - half), cancel);
}

}  // namespace tensorizer
