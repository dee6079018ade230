#include "transfer/memory/ties.h"

#include <algorithm>
#include <map>

#include "transfer/memory/memory.h"

namespace tensorizer {

namespace {

// Takes a few milliseconds to copy.
constexpr std::size_t kPiece = 16 << 20;

}  // namespace

std::vector<std::size_t> find_ties(std::span<const at::Tensor> tensors) {
  std::map<MemoryKey, std::size_t> first;
  std::vector<std::size_t> ties;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    ties.push_back(first.emplace(MemoryKey(tensors[i]), i).first->second);
  }
  return ties;
}

bool has_same_bytes(const at::Tensor& tensor, const at::Tensor& other) {
  if (tensor.is_meta() || tensor.numel() == 0) return true;
  return row_major_bytes(tensor, "a tensor").equal(row_major_bytes(other, "a tensor"));
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
