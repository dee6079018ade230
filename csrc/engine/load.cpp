#include "engine/load.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "engine/load_mover.h"

namespace tensorizer {

namespace {

// Bytes between wanted ones that are cheaper to read along than to skip with another read.
constexpr std::uint64_t kLargestGap = 16 << 10;
// What a worker hashes at a time of a tensor whose SHA-256 it takes, so that several tensors share
// it; also what a chunk of encrypted data usually has.
constexpr std::uint64_t kHashedSlice = kCryptChunk;

}  // namespace

void load(Source& source, Index& index, std::vector<LoadItem> items, const LoadSettings& settings,
          Progress& progress, Cancel& cancel) {
  progress.total = progress.done = 0;
  if (items.empty()) return;
  const std::span<const Entry> entries = index.entries();
  std::sort(items.begin(), items.end(), [&](const LoadItem& a, const LoadItem& b) {
    return entries[a.entry].header_offset < entries[b.entry].header_offset;
  });
  const bool encrypted = index.header().encrypted;
  if (encrypted && settings.keys == nullptr) {
    throw Error(ErrorKind::Crypto, source.label() +
                                       ": the file is encrypted, and no key was given: name one "
                                       "with the option 'key'");
  }
  LoadMover mover(source, index, items, settings, progress);

  std::vector<Extent> extents;
  extents.reserve(items.size());
  std::uint64_t total = 0;
  for (const LoadItem& item : items) {
    extents.push_back(mover.extent(item));
    total += entries[item.entry].data_size;
  }
  progress.total = total;

  const std::uint64_t first = extents.front().offset;
  const ReadHints hints = source.hints(
      first, extents.back().offset + extents.back().header_size + extents.back().data_size - first);
  MoveSettings move_settings;
  move_settings.threads = settings.threads;
  move_settings.moves_in_flight = source.sequential() ? 1
                                  : settings.threads > 1
                                      ? std::max(settings.threads, hints.reads_in_flight)
                                      : 1;
  move_settings.crc32 = mover.verifies();
  move_settings.sha256 = mover.digests();
  const bool hashed = settings.verify == Verify::All || settings.expected_digests != nullptr;
  const bool lanes = hashed && !source.sequential();
  move_settings.lanes = lanes ? sha256_lanes() : 1;
  move_settings.open_access = settings.open_access;

  const int workers = std::max(move_settings.threads, move_settings.moves_in_flight);
  const std::uint64_t fair_share = fair_share_of(settings.memory_ceiling, workers);
  PlanLimits limits;
  limits.bundle_size = std::min(hints.read_size, fair_share);
  const bool staged =
      std::any_of(items.begin(), items.end(), [](const LoadItem& item) { return item.staged; });
  // A power of two, so that no slice ends inside a page of the tensor.
  limits.slice_size = std::bit_floor(std::min(
      hints.read_size, staged ? fair_share : std::max(settings.memory_ceiling, kSmallestSlice)));
  if (hashed) limits.slice_size = std::min(limits.slice_size, kHashedSlice);
  // Whole chunks, which take no memory of ours: what is staged is not cut.
  if (encrypted) limits.slice_size = kHashedSlice;
  if (mover.passes_any()) {
    // Half of the memory is for slices, a quarter for bundles.
    limits.slice_size =
        std::bit_floor(std::min({limits.slice_size, hints.part_size, fair_share / 2}));
    limits.bundle_size = std::min(limits.bundle_size, limits.slice_size);
    move_settings.most_slices =
        std::max<std::size_t>(settings.memory_ceiling / 2 / limits.slice_size, 1);
  }
  limits.slices_follow_file = false;
  limits.largest_gap = kLargestGap;

  Plan plan = plan_in_order(extents, limits);
  mover.follow(plan, limits, staged_chunk(fair_share), hints.part_size);
  if (lanes) interleave(plan, settings.threads * move_settings.lanes);
  try {
    progress.computed = move(plan, mover, move_settings, cancel);
  } catch (...) {
    if (settings.zero_incomplete && (encrypted || mover.digests())) mover.zero_unchecked();
    throw;
  }
}

}  // namespace tensorizer
