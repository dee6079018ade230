#include "engine/move/plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

namespace tensorizer {

namespace {

std::uint64_t largest_strip(const Extent& extent, const PlanLimits& limits) {
  const std::uint64_t most = limits.strip_size / extent.cost;
  const std::uint64_t unit = extent.run > 0 && extent.run <= most ? extent.run : kStripUnit;
  return std::max(most / unit * unit, unit);
}

// To which lane a task belongs, and how many bytes it moves.
struct Turn {
  std::uint32_t lane;
  std::uint64_t size;
};
constexpr std::uint32_t kLast = std::numeric_limits<std::uint32_t>::max();  // behind all lanes

// Reorders the tasks so that each lane keeps its order, and advances at the pace that makes it end
// together with the others.
template <typename TurnOf>
void take_turns(Plan& plan, const TurnOf& turn_of) {
  std::vector<Turn> turns;
  turns.reserve(plan.tasks.size());
  std::map<std::uint32_t, std::uint64_t> lane_size;
  for (const Task& task : plan.tasks) {
    turns.push_back(turn_of(task));
    lane_size[turns.back().lane] += turns.back().size;
  }
  struct When {
    double when;
    std::size_t task;
  };
  std::vector<When> order;
  order.reserve(turns.size());
  std::map<std::uint32_t, std::uint64_t> passed;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const auto [lane, size] = turns[i];
    std::uint64_t& before = passed[lane];
    const double all = static_cast<double>(std::max<std::uint64_t>(lane_size[lane], 1));
    order.push_back({lane == kLast ? 2.0 : static_cast<double>(before) / all, i});
    before += size;
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const When& a, const When& b) { return a.when < b.when; });
  std::vector<Task> tasks;
  tasks.reserve(order.size());
  for (const When& each : order) tasks.push_back(plan.tasks[each.task]);
  plan.tasks = std::move(tasks);
}

}  // namespace

Plan plan_in_order(std::span<const Extent> extents, const PlanLimits& limits) {
  Plan plan;
  bool open = false;  // the last task is a bundle that may grow
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  for (std::uint32_t i = 0; i < extents.size(); ++i) {
    const Extent& extent = extents[i];
    const std::uint64_t size = extent.header_size + extent.data_size;
    const std::uint64_t most = largest_strip(extent, limits);
    if (size > most && !extent.whole && extent.data_size > 0) {
      const auto large = static_cast<std::uint32_t>(plan.large.size());
      // Rounded, so that strips hold whole elements wherever data begins.
      const std::uint64_t begin = limits.strips_follow_file ? (extent.offset + extent.header_size) /
                                                                  extent.unit * extent.unit
                                                            : extent.position;
      std::uint32_t strips = 0;
      for (std::uint64_t at = 0; at < extent.data_size; ++strips) {
        const std::uint64_t to_boundary = most - (begin + at) % most;
        const std::uint64_t strip = std::min(to_boundary, extent.data_size - at);
        plan.tasks.push_back({i, 0, at, strip, large, strips});
        at += strip;
      }
      plan.large.push_back({i, extent.data_size, strips});
      open = false;
      continue;
    }
    const bool alone = extent.alone || size > most;
    // For an extent that begins before `end`, the gap wraps around and is larger than any.
    if (open && !alone && extent.offset - end <= limits.largest_gap &&
        extent.offset + size - begin <= limits.bundle_size) {
      plan.tasks.back().count += 1;
    } else {
      plan.tasks.push_back({i, 1, 0, 0, 0, 0});
      begin = extent.offset;
      open = !alone;
    }
    end = extent.offset + size;
  }
  return plan;
}

void interleave(Plan& plan, int open) {
  // Assigns the tensors to lanes, longest first, each to the lane that has the fewest bytes, so
  // that lanes get about the same length.
  std::vector<std::uint32_t> by_size(plan.large.size());
  std::iota(by_size.begin(), by_size.end(), 0U);
  std::stable_sort(by_size.begin(), by_size.end(), [&](std::uint32_t a, std::uint32_t b) {
    return plan.large[a].size > plan.large[b].size;
  });
  std::vector<std::uint64_t> lane_size(static_cast<std::size_t>(open), 0);
  std::vector<std::uint32_t> lane_of(plan.large.size());
  for (const std::uint32_t large : by_size) {
    const auto least = std::min_element(lane_size.begin(), lane_size.end());
    lane_of[large] = static_cast<std::uint32_t>(least - lane_size.begin());
    *least += plan.large[large].size;
  }
  take_turns(plan, [&](const Task& task) {
    return task.is_strip() ? Turn{lane_of[task.large], task.size} : Turn{kLast, 0};
  });
}

void put_side_by_side(Plan& plan, std::span<const Extent> extents, const EndOfRun& end_of_run) {
  std::uint32_t lane = 0;
  std::uint64_t end = 0;
  take_turns(plan, [&](const Task& task) {
    const Extent& first = extents[task.first];
    if (first.offset >= end) {
      ++lane;
      end = end_of_run(first.offset);
    }
    std::uint64_t size = task.size;
    for (const Extent& extent : extents.subspan(task.first, task.count)) {
      size += extent.header_size + extent.data_size;
    }
    return Turn{lane, size};
  });
}

}  // namespace tensorizer
