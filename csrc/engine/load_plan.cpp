#include "engine/load_plan.h"

#include <bit>

namespace tensorizer {

namespace {

// The largest gap between wanted bytes that is cheaper to read than to skip with another read.
constexpr std::uint64_t kLargestGap = 16 << 10;
// The size of slices that SHA-256 hashes: small enough for a worker to hash several tensors side by
// side, and the usual size of a chunk of encrypted data.
constexpr std::uint64_t kHashedSlice = 2 << 20;

Extent extent_of(const LoadJob& job, const LoadItem& item) {
  const Entry& e = job.entry(item);
  const bool part = job.decrypts_part(item);
  const bool details = job.needs_details(item);
  if (details) job.catalogue.check_header_size(item.entry, job.location);
  const bool header = details && !part;
  Extent extent{};
  extent.offset = header ? e.header_offset : e.data_offset + item.range.position;
  extent.header_size = header ? e.header_size() : 0;
  extent.data_size = item.range.size;
  // The port does not keep staged bytes until a digest that goes in order reaches them, or until
  // the rest of their chunk has arrived.
  extent.whole = part || (item.staged && (job.digests() || job.encrypted()));
  extent.alone = part;
  return extent;
}

}  // namespace

LoadPlan plan_load(const LoadJob& job) {
  const LoadSettings& settings = job.settings;
  LoadPlan plan;
  plan.extents.reserve(job.items.size());
  for (const LoadItem& item : job.items) {
    plan.extents.push_back(extent_of(job, item));
    plan.size += plan.extents.back().data_size;
  }

  const bool sequential = job.source.sequential();
  const Extent& last = plan.extents.back();
  const std::uint64_t first = plan.extents.front().offset;
  const ReadHints hints =
      job.source.hints(first, last.offset + last.header_size + last.data_size - first);
  plan.move.threads = settings.threads;
  plan.move.moves_in_flight = 1;
  if (!sequential && settings.threads > 1) {
    plan.move.moves_in_flight = std::max(settings.threads, hints.reads_in_flight);
  }
  plan.move.crc32 = job.verifies();
  plan.move.sha256 = job.digests();
  const bool hashed = settings.verify == Verify::All || settings.expected_digests != nullptr;
  const bool lanes = hashed && !sequential;
  plan.move.lanes = lanes ? sha256_lanes() : 1;
  plan.move.open_access = settings.open_access;

  const int workers = std::max(plan.move.threads, plan.move.moves_in_flight);
  const std::uint64_t fair_share = fair_share_of(settings.memory_ceiling, workers);
  const auto any_of = [&](const auto& test) {
    return std::any_of(job.items.begin(), job.items.end(), test);
  };
  const bool staged = any_of([](const LoadItem& item) { return item.staged.has_value(); });
  PlanLimits limits;
  limits.bundle_size = std::min(hints.read_size, fair_share);
  // A power of two, so that no slice ends inside a page of the tensor.
  limits.slice_size = std::bit_floor(std::min(
      hints.read_size, staged ? fair_share : std::max(settings.memory_ceiling, kSmallestSlice)));
  if (hashed) limits.slice_size = std::min(limits.slice_size, kHashedSlice);
  // Slices of whole chunks. They are decrypted in place and take no memory of the job, because
  // staged tensors are not cut.
  if (job.encrypted()) limits.slice_size = kHashedSlice;
  if (any_of([&](const LoadItem& item) { return job.is_only_checked(item); })) {
    // Half of the memory is for slices, a quarter for bundles.
    limits.slice_size =
        std::bit_floor(std::min({limits.slice_size, hints.part_size, fair_share / 2}));
    limits.bundle_size = std::min(limits.bundle_size, limits.slice_size);
    plan.move.most_slices =
        std::max<std::size_t>(settings.memory_ceiling / 2 / limits.slice_size, 1);
  }
  limits.slices_follow_file = false;
  limits.largest_gap = kLargestGap;

  plan.plan = plan_in_order(plan.extents, limits);
  if (lanes) interleave(plan.plan, settings.threads * plan.move.lanes);
  plan.slice_size = limits.slice_size;
  plan.piece_size = staged_chunk(fair_share);
  plan.part_size = hints.part_size;
  return plan;
}

}  // namespace tensorizer
