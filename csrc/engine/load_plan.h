// Decides how a load is done before anything moves: what is read of each tensor, in which pieces,
// by how many workers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/load.h"
#include "engine/read_index.h"

namespace tensorizer {

// The arguments of load().
struct LoadJob {
  Source& source;
  Index& index;
  std::span<const LoadItem> items;  // in the order of the file
  const LoadSettings& settings;
  FileLocation location;

  const Entry& entry(const LoadItem& item) const { return index.entries()[item.entry]; }
  bool encrypted() const { return index.header().encrypted; }
  // Whether the digests in the file are compared; expected digests take their place.
  bool verifies() const {
    return settings.verify != Verify::None && settings.expected_digests == nullptr;
  }
  // Whether digests are computed.
  bool digests() const { return verifies() || settings.expected_digests != nullptr; }
  // Whether an item's data has no place of its own and is only looked at.
  bool passes(const LoadItem& item) const {
    return !item.staged && item.memory.empty() && entry(item).data_size > 0;
  }
};

struct LoadPlan {
  std::vector<Extent> extents;  // of the items: what is read of each
  std::uint64_t size = 0;       // of all data
  Plan plan;
  MoveSettings move;
  std::uint64_t slice_size = 0;
  // How much of a staged tensor that is not cut passes at a time.
  std::uint64_t piece_size = 0;
  // How much of a slice is read before it is digested.
  std::uint64_t part_size = 0;
};

// Throws InvalidFormat if a tensor header that is needed has an impossible size.
LoadPlan plan_load(const LoadJob& job);

}  // namespace tensorizer
