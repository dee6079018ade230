// Cuts a job into tasks.
//
// How much runs in parallel depends on bytes, not on how large or small the tensors are: an extent
// that is larger than a strip is cut into strips that move on their own, and smaller neighbours are
// tied into bundles that move together.
#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tensorizer {

// Strips end on multiples of this within a tensor, except those of runs.
inline constexpr std::uint64_t kStripUnit = 64;

// The bytes of one item that a job moves, as one span of the file. A job lists its extents in file
// order.
struct Extent {
  std::uint64_t offset;       // of the first byte that moves: the header's, or the data's
  std::uint64_t header_size;  // 0 if no header moves
  std::uint64_t data_size;
  bool whole = false;  // must not be cut, however large
  bool alone = false;  // must not share a bundle
  // The cost of moving one byte of the data, in bytes: more than 1 if bytes between are read as
  // well.
  std::uint64_t cost = 1;
  std::uint64_t run = 0;  // if not 0, strips end on multiples of this where they can
  // Strips that follow the file hold whole units of this size.
  std::uint64_t unit = kStripUnit;
  // The position that the data counts from: strips that do not follow the file end on multiples of
  // their size there.
  std::uint64_t position = 0;
};

struct Task {
  // A bundle: extents `first` to `first + count`. A strip: count is 0, `first` the extent.
  std::uint32_t first;
  std::uint32_t count;
  // A strip: its part of the extent's data, the extent's number among the large ones, and the
  // strip's own number within the extent.
  std::uint64_t position;
  std::uint64_t size;
  std::uint32_t large;
  std::uint32_t strip;

  bool is_strip() const noexcept { return count == 0; }
};

// An extent that is larger than a strip, and moves in strips.
struct LargeExtent {
  std::uint32_t extent;  // its number
  std::uint64_t size;
  std::uint32_t strips;
};

struct Plan {
  std::vector<Task> tasks;  // in the order in which they should start
  std::vector<LargeExtent> large;
};

struct PlanLimits {
  // The highest cost of a strip, and of an extent that is not cut.
  std::uint64_t strip_size;
  std::uint64_t bundle_size;  // the longest bundle, gaps included
  std::uint64_t largest_gap;  // how many unused bytes may lie between neighbours in a bundle
  // Whether strips end on multiples of their size in the file, or in the tensor.
  bool strips_follow_file;
};

inline constexpr std::uint64_t kSmallestStrip = 64 << 10;

// Returns the largest piece that a worker may take of memory that all workers share. Each worker
// may hold one piece and have another one in flight. A power of two, because allocators round to
// those.
constexpr std::uint64_t fair_share_of(std::uint64_t memory, int workers) {
  const std::uint64_t share = memory / (2 * static_cast<std::uint64_t>(workers));
  return std::bit_floor(share < kSmallestStrip ? kSmallestStrip : share);
}

// Returns how much of a tensor that is not cut passes through staging memory at a time, if a worker
// may take `share`. Pieces are large because those of a transposed tensor touch much more memory
// than they take.
constexpr std::uint64_t staged_piece(std::uint64_t share) {
  constexpr std::uint64_t kLargest = 8 << 20;
  return share < kLargest ? share : kLargest;
}

// Returns a plan whose tasks are in file order.
Plan plan_in_order(std::span<const Extent> extents, const PlanLimits& limits);

// Reorders a plan so that at any time the strips of about `open` tensors take turns, and all of
// these end at about the same time; bundles come last. For digests that must follow in order within
// a tensor but run faster over several tensors at once.
void interleave(Plan& plan, int open);

// Reorders a plan so that runs of the file, such as the files of a model, are moved side by side,
// each in its order, and all end at about the same time. `end_of_run` returns where the run ends
// that has a byte.
using EndOfRun = std::function<std::uint64_t(std::uint64_t offset)>;
void put_side_by_side(Plan& plan, std::span<const Extent> extents, const EndOfRun& end_of_run);

}  // namespace tensorizer
