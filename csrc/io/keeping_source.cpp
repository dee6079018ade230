#include "io/keeping_source.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

namespace tensorizer {

namespace {

// Returns the numbers of pieces that begin in the memory of another one.
std::vector<std::size_t> sharing(std::span<const Bytes> pieces) {
  std::vector<std::size_t> by_address(pieces.size());
  std::iota(by_address.begin(), by_address.end(), std::size_t{0});
  std::ranges::stable_sort(by_address, std::less<>(),
                           [&](std::size_t i) { return pieces[i].data(); });
  std::vector<std::size_t> found;
  const std::byte* end = nullptr;  // of the pieces before
  for (const std::size_t i : by_address) {
    if (pieces[i].empty()) continue;
    if (end != nullptr && std::less<>()(pieces[i].data(), end)) found.push_back(i);
    const std::byte* const own_end = pieces[i].data() + pieces[i].size();
    if (end == nullptr || std::less<>()(end, own_end)) end = own_end;
  }
  return found;
}

}  // namespace

void KeepingSource::read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) {
  const std::uint64_t wanted = total_size(pieces);
  const std::uint64_t there = size_ - std::min(offset, size_);
  if (wanted > there) throw_source_ended(label(), size_, wanted - there);
  if (wanted == 0) return;
  const std::vector<std::size_t> shared = sharing(pieces);
  if (shared.empty()) return read_distinct(offset, pieces, cancel);
  std::vector<Bytes> distinct(pieces.begin(), pieces.end());
  std::uint64_t size = 0;
  for (const std::size_t i : shared) size += pieces[i].size();
  std::vector<std::byte> unwanted(size);
  Bytes left(unwanted);
  for (const std::size_t i : shared) {
    distinct[i] = left.first(pieces[i].size());
    left = left.subspan(pieces[i].size());
  }
  read_distinct(offset, distinct, cancel);
}

std::size_t KeepingSource::read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) {
  const std::uint64_t there = size_ - std::min(offset, size_);
  const Bytes piece = out.first(std::min<std::uint64_t>(out.size(), there));
  read(offset, {&piece, 1}, cancel);
  return piece.size();
}

}  // namespace tensorizer
