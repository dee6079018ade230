#include "engine/move/runs.h"

#include <algorithm>
#include <cstring>

namespace tensorizer {

namespace {

// From this length on, a read into place is faster than a copy from scratch memory.
constexpr std::uint64_t kLongRun = 4 << 10;
// Unused bytes between long runs are read into memory of this size, again and again.
constexpr std::uint64_t kUnusedSize = 64 << 10;

// Several runs that one read fetches.
struct JoinedRuns {
  std::uint64_t position;
  std::uint64_t length;  // gaps included
  std::uint64_t size;    // of the runs alone
};

// Returns the runs from `offset` on, of at most `most` bytes, that one read should fetch: at least
// one run.
JoinedRuns join(const Runs& runs, std::uint64_t offset, std::uint64_t most,
                std::uint64_t largest_gap, std::uint64_t read_size) {
  RunSeries series = runs.series_at(offset, most);
  const std::uint64_t begin = series.position;
  std::uint64_t end = begin;
  std::uint64_t size = 0;
  for (;;) {
    std::uint64_t count = 1;
    if (series.count > 1 && series.gap() <= largest_gap) {
      const std::uint64_t first = series.position + series.run - begin;
      const std::uint64_t room = first < read_size ? read_size - first : 0;
      count = std::min(series.count, 1 + room / series.stride);
    }
    end = series.position + (count - 1) * series.stride + series.run;
    size += count * series.run;
    if (size == most) break;
    series = runs.series_at(offset + size, most - size);
    if (series.position - end > largest_gap || series.position + series.run - begin > read_size) {
      break;
    }
  }
  return {begin, end - begin, size};
}

template <std::size_t run>
void copy_runs_of(const std::byte* from, std::uint64_t stride, std::uint64_t count, std::byte* to) {
  for (std::uint64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * run, from + i * stride, run);
  }
}

void copy_runs(const std::byte* from, const RunSeries& series, std::byte* to) {
  switch (series.run) {
    case 1:
      return copy_runs_of<1>(from, series.stride, series.count, to);
    case 2:
      return copy_runs_of<2>(from, series.stride, series.count, to);
    case 4:
      return copy_runs_of<4>(from, series.stride, series.count, to);
    case 8:
      return copy_runs_of<8>(from, series.stride, series.count, to);
    case 16:
      return copy_runs_of<16>(from, series.stride, series.count, to);
    default:
      for (std::uint64_t i = 0; i < series.count; ++i) {
        std::memcpy(to + i * series.run, from + i * series.stride, series.run);
      }
  }
}

void copy_joined(const Runs& runs, std::uint64_t offset, const JoinedRuns& joined,
                 ConstBytes memory, Bytes target) {
  for (std::uint64_t done = 0; done < joined.size;) {
    const RunSeries series = runs.series_at(offset + done, joined.size - done);
    copy_runs(memory.data() + (series.position - joined.position), series, target.data() + done);
    done += series.count * series.run;
  }
}

// Returns the pieces that one read fills: runs in `target`, and gaps in `unused`.
std::vector<Bytes> pieces_of(const Runs& runs, std::uint64_t offset, const JoinedRuns& joined,
                             Bytes target, Bytes unused) {
  std::vector<Bytes> pieces;
  std::uint64_t end = joined.position;
  for (std::uint64_t done = 0; done < joined.size;) {
    const RunSeries series = runs.series_at(offset + done, joined.size - done);
    for (std::uint64_t i = 0; i < series.count; ++i) {
      const std::uint64_t position = series.position + i * series.stride;
      while (end < position) {
        pieces.push_back(unused.first(std::min<std::uint64_t>(unused.size(), position - end)));
        end += pieces.back().size();
      }
      pieces.push_back(target.subspan(done, series.run));
      done += series.run;
      end += series.run;
    }
  }
  return pieces;
}

}  // namespace

Runs::Runs(std::span<const std::int64_t> shape, std::uint64_t element_size,
           std::span<const DimensionPart> parts) {
  if (std::any_of(parts.begin(), parts.end(),
                  [](const DimensionPart& part) { return part.length == 0; })) {
    return;
  }
  run_ = element_size;
  std::uint64_t position = 0;
  std::uint64_t elements = 1;        // of all runs
  std::uint64_t row = element_size;  // the bytes from one element of this dimension to the next
  for (std::size_t i = shape.size(); i-- > 0;) {
    const DimensionPart& part = parts[i];
    position += part.start * row;
    elements *= part.length;
    const std::uint64_t stride = part.step * row;
    if (part.length > 1) {
      if (axes_.empty() && stride == run_) {
        run_ *= part.length;
      } else if (!axes_.empty() && stride == axes_.back().stride * axes_.back().count) {
        axes_.back().count *= part.length;
      } else {
        axes_.push_back({part.length, stride});
      }
    }
    row *= static_cast<std::uint64_t>(shape[i]);
  }
  size_ = elements * element_size;
  range_ = {position, run_};
  for (const Axis& axis : axes_) range_.size += (axis.count - 1) * axis.stride;
}

RunSeries Runs::series_at(std::uint64_t offset, std::uint64_t most) const {
  const std::uint64_t inside = offset % run_;
  std::uint64_t position = range_.position + inside;
  std::uint64_t index = offset / run_;  // in the dimensions from this one on outwards
  std::uint64_t count = 1;
  std::uint64_t stride = run_;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    const std::uint64_t here = index % axes_[i].count;
    index /= axes_[i].count;
    position += here * axes_[i].stride;
    if (i == 0) {
      count = axes_[i].count - here;
      stride = axes_[i].stride;
    }
  }
  if (inside > 0 || most < run_) return {position, std::min(run_ - inside, most), stride, 1};
  return {position, run_, stride, std::min(count, most / run_)};
}

std::uint64_t Runs::cost(std::uint64_t read_cost) const {
  std::uint64_t cost = run_;
  std::uint64_t length = run_;
  for (const Axis& axis : axes_) {
    cost = cost * axis.count + std::min(axis.stride - length, read_cost) * (axis.count - 1);
    length += (axis.count - 1) * axis.stride;
  }
  return cost;
}

void gather(const Runs& runs, std::uint64_t offset, Bytes out, const GatherLimits& limits,
            Scratch& scratch, const ReadData& read) {
  const bool into_place = runs.run() >= kLongRun;
  while (!out.empty()) {
    const JoinedRuns joined = join(runs, offset, out.size(), limits.largest_gap,
                                   into_place ? limits.read_size : limits.scratch_size);
    const Bytes target = out.first(joined.size);
    if (joined.size == joined.length) {
      read(joined.position, {&target, 1});
    } else if (into_place) {
      const Bytes unused = scratch.take(std::min(limits.largest_gap, kUnusedSize));
      read(joined.position, pieces_of(runs, offset, joined, target, unused));
    } else {
      const Bytes memory = scratch.take(joined.length);
      read(joined.position, {&memory, 1});
      copy_joined(runs, offset, joined, memory, target);
    }
    offset += joined.size;
    out = out.subspan(joined.size);
  }
}

}  // namespace tensorizer
