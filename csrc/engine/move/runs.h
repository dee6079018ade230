// The bytes of a slice of a tensor, and reading them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "engine/move/scratch.h"

namespace tensorizer {

// A range of the data of a tensor, as it is stored when it is not encrypted.
struct ByteRange {
  std::uint64_t position;
  std::uint64_t size;
};

// The elements that a slice takes of one dimension: `length` of them, from `start` on, each `step`
// behind the one before.
struct DimensionPart {
  std::uint64_t start;
  std::uint64_t length;
  std::uint64_t step = 1;
};

// Runs of equal length at equal distances. `stride` counts from the start of one to the next.
struct RunSeries {
  std::uint64_t position;  // in the tensor's data
  std::uint64_t run;
  std::uint64_t stride;
  std::uint64_t count;

  std::uint64_t gap() const noexcept { return stride - run; }
};

// The bytes of a slice of a tensor in row-major order, as runs of equal length. Their positions
// ascend. Takes a few bytes for each dimension, however many runs there are. Offsets count the
// bytes of the slice without those between its runs.
class Runs {
 public:
  // `parts` has an element for each dimension, and lies inside the shape.
  Runs(std::span<const std::int64_t> shape, std::uint64_t element_size,
       std::span<const DimensionPart> parts);

  // Returns the number of bytes in all runs.
  std::uint64_t size() const noexcept { return size_; }
  // Returns what lies between the first and the last byte of the slice, both included.
  ByteRange range() const noexcept { return range_; }
  // Returns the number of bytes in one run.
  std::uint64_t run() const noexcept { return run_; }
  bool is_one_run() const noexcept { return axes_.empty(); }
  // Returns the series that begins at `offset`, which is less than size(), and has at most `most`
  // bytes. It holds one run or a part of it if the offset is inside a run.
  RunSeries series_at(std::uint64_t offset, std::uint64_t most) const;
  // Returns what it costs to read all runs, in bytes, if one more read costs as much as
  // `read_cost` bytes: a gap is read, or skipped by another read, whichever is cheaper.
  std::uint64_t cost(std::uint64_t read_cost) const;

 private:
  struct Axis {
    std::uint64_t count;
    std::uint64_t stride;
  };

  std::uint64_t size_ = 0;
  ByteRange range_{};
  std::uint64_t run_ = 0;
  std::vector<Axis> axes_;  // the innermost first
};

struct GatherLimits {
  std::uint64_t largest_gap;   // the most unused bytes to read between two runs
  std::uint64_t read_size;     // the longest read of several runs
  std::uint64_t scratch_size;  // the longest read into scratch memory
};

// Reads the bytes of a tensor's data from `position` on into the pieces.
using ReadData = std::function<void(std::uint64_t position, std::span<const Bytes> pieces)>;

// Fills `out` with the bytes of the slice from `offset` on, in reads whose positions ascend. Long
// runs are read into place, short ones through scratch memory.
void gather(const Runs& runs, std::uint64_t offset, Bytes out, const GatherLimits& limits,
            Scratch& scratch, const ReadData& read);

}  // namespace tensorizer
