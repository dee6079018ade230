#include "engine/load_plan.h"

#include <bit>

namespace tensorizer {

namespace {

// The cost of copying one more run from a decrypted chunk, in bytes.
constexpr std::uint64_t kCopyCost = 64;
// The size of slices that SHA-256 hashes: small enough for a worker to hash several tensors side by
// side, and the usual size of a chunk of encrypted data.
constexpr std::uint64_t kHashedSlice = 2 << 20;

Extent extent_of(const LoadJob& job, const LoadItem& item, std::uint64_t read_cost) {
  const Entry& e = job.entry(item);
  const bool part = job.decrypts_part(item);
  const bool details = job.needs_details(item);
  if (details) job.catalogue.check_header_size(item.entry, job.location);
  const bool header = details && !part;
  Extent extent{};
  extent.offset = header ? e.header_offset : e.data_offset + item.range.position;
  extent.header_size = header ? e.header_size() : 0;
  extent.data_size = item.size();
  // The port does not keep staged bytes until a digest that goes in order reaches them, or until
  // the rest of their chunk has arrived.
  extent.whole = part || (item.staged && (job.digests() || job.encrypted()));
  extent.alone = part || item.runs != nullptr;
  if (item.runs != nullptr && extent.data_size > 0) {
    extent.run = item.runs->run();
    extent.cost = (item.runs->cost(read_cost) + extent.data_size - 1) / extent.data_size;
  }
  return extent;
}

}  // namespace

LoadPlan plan_load(const LoadJob& job) {
  const LoadSettings& settings = job.settings;
  LoadPlan plan;
  std::uint64_t end = 0;
  for (const LoadItem& item : job.items) end = std::max(end, end_of(item, job.entry(item)));
  const std::uint64_t first = begin_of(job.items.front(), job.entry(job.items.front()));
  const bool sequential = job.source.sequential();
  const ReadHints hints = job.source.hints(first, end - first);
  plan.extents.reserve(job.items.size());
  for (const LoadItem& item : job.items) {
    plan.extents.push_back(extent_of(job, item, hints.read_cost));
    plan.size += plan.extents.back().data_size;
  }
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
  limits.largest_gap = hints.read_cost;

  plan.plan = plan_in_order(plan.extents, limits);
  if (lanes) interleave(plan.plan, settings.threads * plan.move.lanes);
  plan.slice_size = limits.slice_size;
  plan.piece_size = staged_chunk(fair_share);
  plan.gather.largest_gap = job.encrypted() ? kCopyCost : hints.read_cost;
  plan.gather.read_size = hints.read_size;
  plan.gather.scratch_size = std::min({hints.read_size, hints.part_size, fair_share});
  plan.part_size = hints.part_size;
  return plan;
}

}  // namespace tensorizer
