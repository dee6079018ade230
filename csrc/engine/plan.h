// How a job is cut into pieces of work.
//
// Parallelism shall depend on bytes, never on how large or small the tensors are: a tensor larger
// than a slice is cut into slices that move on their own, and neighbours that are smaller are tied
// into bundles that move together.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace tensorizer {

// What a job does with one tensor; a job lists them in file order.
struct Extent {
  std::uint64_t offset;       // of its first byte that moves: its header's, or its data's
  std::uint64_t header_size;  // 0 when the header does not move
  std::uint64_t data_size;
  bool whole;  // must not be cut, however large
};

struct Range {
  // A bundle: tensors `first` to `first + count`. A slice: count is 0, `first` the tensor.
  std::uint32_t first;
  std::uint32_t count;
  // A slice: its part of the tensor's data, the tensor's number among those that are cut, and its
  // own number among the tensor's slices.
  std::uint64_t position;
  std::uint64_t size;
  std::uint32_t sliced;
  std::uint32_t slice;
};

// A tensor that moves in slices.
struct SlicedTensor {
  std::uint32_t tensor;
  std::uint64_t size;
  std::uint32_t slices;
};

struct Plan {
  std::vector<Range> ranges;  // in the order in which they should start
  std::vector<SlicedTensor> sliced;
};

// Slices end on multiples of this within a tensor.
inline constexpr std::uint64_t kSliceUnit = 64;

struct PlanLimits {
  std::uint64_t slice_size;   // the largest slice, and the largest tensor that is not cut
  std::uint64_t bundle_size;  // the longest bundle, gaps included
  std::uint64_t largest_gap;  // what may lie unused between neighbours of a bundle
  // Whether slices end on multiples of their size in the file, or in the tensor.
  bool slices_follow_file;
};

inline constexpr std::uint64_t kSmallestSlice = 64 << 10;

// The largest piece that a worker may take of memory for all: each may hold one, and have another
// that is still on its way. A power of two, because that is what allocators give.
constexpr std::uint64_t fair_share_of(std::uint64_t memory, int workers) {
  const std::uint64_t share = memory / (2 * static_cast<std::uint64_t>(workers));
  return std::bit_floor(share < kSmallestSlice ? kSmallestSlice : share);
}

// How much of a tensor that is not cut passes through staging memory at a time, when a worker may
// take `share`. Pieces are large, because those of a transposed tensor touch much more memory than
// they take.
constexpr std::uint64_t staged_chunk(std::uint64_t share) {
  constexpr std::uint64_t kLargest = 8 << 20;
  return share < kLargest ? share : kLargest;
}

// Ranges in file order.
Plan plan_in_order(std::span<const Extent> extents, const PlanLimits& limits);

// Reorders a plan so that at any time the slices of about `open` tensors take turns, and all of
// these end at about the same time; bundles come last. For digests that must follow in order within
// a tensor but run faster over several tensors at once.
void interleave(Plan& plan, int open);

}  // namespace tensorizer
