#include "engine/load/load_plan.h"

#include <bit>

namespace tensorizer {

namespace {

// The cost of copying one more run from a chunk that is in memory, in bytes.
constexpr std::uint64_t kCopyCost = 64;
// The size of strips that SHA-256 hashes: small enough for a worker to hash several tensors side by
// side, and the usual size of a chunk of encrypted data.
constexpr std::uint64_t kHashedStrip = 2 << 20;
// Local bytes on their way to a device are read in strips of at most this size: all workers' strips
// should be in the processor's cache until the device has copied them.
constexpr std::uint64_t kStagedStrip = 2 << 20;
// The host checks fewer bytes faster than a device starts a kernel.
constexpr std::uint64_t kLeastOnDevice = 64 << 10;

Extent extent_of(const LoadJob& job, const LoadItem& item, std::uint64_t read_cost) {
  const Entry& e = job.entry(item);
  const bool part = job.is_part_of_chunks(item);
  const bool header = job.needs_details(item);
  if (header || (part && job.encrypted())) {
    job.catalogue.check_header_size(item.entry, job.location);
  }
  Extent extent{};
  extent.offset = header ? e.header_offset : e.data_offset + item.range.position;
  extent.header_size = header ? e.header_size() : 0;
  extent.data_size = item.size();
  extent.alone = part || item.runs != nullptr;
  if (part && item.runs == nullptr) extent.position = item.range.position;
  if (item.runs != nullptr && extent.data_size > 0) {
    extent.run = item.runs->run();
    extent.cost = (item.runs->cost(read_cost) + extent.data_size - 1) / extent.data_size;
  }
  return extent;
}

// Returns whether an item must not be cut. The port does not keep staged bytes until a digest that
// goes in order reaches them, or until the rest of their chunk has arrived. Cut runs would have
// chunks in common, which each of them would read, and the chunks of encrypted data are not known
// yet: only a device can decrypt them when they have all arrived.
bool is_whole_extent(const LoadJob& job, const LoadItem& item, std::uint64_t strip,
                     std::uint64_t fair_share) {
  if (job.is_part_of_chunks(item) && (item.runs != nullptr || job.encrypted())) return true;
  if (!item.staged) return false;
  if (strip > fair_share) return true;
  if (job.encrypted() && !job.checks_on_device(item)) return true;
  return job.hashes_chunks() ? strip % job.hashed_chunk() != 0 : job.digests();
}

// The memory that passes between the source and the tensors.
struct Shares {
  std::uint64_t fair_share;  // what a worker may take for one piece
  bool staged;               // whether bytes pass through memory of a port
  bool only_checked;         // whether bytes pass through scratch memory
};

std::uint64_t staged_strip(const LoadJob& job, const Shares& shares) {
  return job.source.remote() ? shares.fair_share : std::min(shares.fair_share, kStagedStrip);
}

// Returns the size of strips of whole chunks, as many as SHA-256 hashes side by side.
std::uint64_t chunked_strip(const LoadJob& job, const LoadPlan& plan, const ReadHints& hints,
                            const Shares& shares, std::uint64_t chunk) {
  std::uint64_t size = chunk * std::bit_ceil(static_cast<std::uint64_t>(sha256_lanes()));
  // All threads should have some of a small file.
  size = std::min(size, plan.size / (2 * static_cast<std::uint64_t>(plan.move.threads)));
  if (shares.staged) size = staged_strip(job, shares);
  if (job.source.remote()) size = std::min(size, hints.read_size);
  if (shares.only_checked) size = std::min(size, shares.fair_share / 2);
  return std::max(std::bit_floor(size), chunk);
}

std::uint64_t strip_size_of(const LoadJob& job, const LoadPlan& plan, const ReadHints& hints,
                            const Shares& shares) {
  if (job.hashes_chunks() && !job.encrypted()) {
    return chunked_strip(job, plan, hints, shares, job.hashed_chunk());
  }
  // The source itself hashes units.
  if (hints.unit > 1 && !job.encrypted()) {
    return chunked_strip(job, plan, hints, shares, hints.unit);
  }
  // A power of two, so that no strip ends inside a page of the tensor.
  std::uint64_t size = std::bit_floor(std::min(
      hints.read_size, shares.staged ? staged_strip(job, shares)
                                     : std::max(job.settings.memory_ceiling, kSmallestStrip)));
  if (job.hashes_in_order()) size = std::min(size, kHashedStrip);
  // Strips of whole chunks. On the host they are decrypted in place and take no memory of the job.
  if (job.encrypted()) size = kHashedStrip;
  if (!shares.only_checked) return size;
  return std::bit_floor(std::min({size, hints.cached_size, shares.fair_share / 2}));
}

}  // namespace

bool LoadJob::checks_on_device(const LoadItem& item) const {
  if (!item.staged || !item.staged->checked_there) return false;
  if (item.size() < kLeastOnDevice || !is_whole(item)) return false;
  if (hashes_chunks() && chunk_hash() != kDeviceChunkHash) return false;
  return encrypted() || digests();
}

LoadPlan plan_load(const LoadJob& job) {
  const LoadSettings& settings = job.settings;
  LoadPlan plan;
  std::uint64_t end = 0;
  for (const LoadItem& item : job.items) {
    end = std::max(end, end_of(item, job.entry(item)));
    plan.size += item.size();
  }
  const std::uint64_t first = begin_of(job.items.front(), job.entry(job.items.front()));
  const bool sequential = job.source.sequential();
  const ReadHints hints = job.source.hints(first, end - first);
  plan.move.threads = settings.threads;
  plan.move.moves_in_flight = 1;
  if (!sequential && settings.threads > 1) {
    plan.move.moves_in_flight = hints.reads_for(settings.threads);
  }
  if (!job.hashes_chunks()) {
    for (const HashInfo& info : kHashes) {
      plan.move.hashes.set(info.hash, info.join != nullptr ? job.verifies() : job.digests());
    }
  }
  const bool in_order = sequential || job.source.checks_at_end();
  const bool lanes = job.hashes_in_order() && !in_order;
  plan.move.lanes = lanes ? sha256_lanes() : 1;
  plan.move.open_access = settings.open_access;

  const int workers = std::max(plan.move.threads, plan.move.moves_in_flight);
  const auto any_of = [&](const auto& test) {
    return std::any_of(job.items.begin(), job.items.end(), test);
  };
  const Shares shares{fair_share_of(settings.memory_ceiling, workers),
                      any_of([](const LoadItem& item) { return item.staged.has_value(); }),
                      any_of([&](const LoadItem& item) { return job.is_only_checked(item); })};
  PlanLimits limits;
  limits.strip_size = strip_size_of(job, plan, hints, shares);
  limits.bundle_size = std::min(hints.read_size, shares.fair_share);
  if (shares.only_checked) {
    // Half of the memory is for strips, a quarter for bundles.
    limits.bundle_size = std::min(limits.bundle_size, limits.strip_size);
    plan.move.most_strips =
        std::max<std::size_t>(settings.memory_ceiling / 2 / limits.strip_size, 1);
  }
  limits.strips_follow_file = hints.unit > 1 && !job.hashes_chunks() && !job.encrypted();
  limits.largest_gap = hints.read_cost;

  plan.extents.reserve(job.items.size());
  for (const LoadItem& item : job.items) {
    plan.extents.push_back(extent_of(job, item, hints.read_cost));
    if (const std::optional<DType> dtype = job.entry(item).dtype) {
      plan.extents.back().unit = dtype_info(*dtype).size;
    }
    plan.extents.back().whole = is_whole_extent(job, item, limits.strip_size, shares.fair_share);
  }
  plan.plan = plan_in_order(plan.extents, limits);
  if (lanes) interleave(plan.plan, settings.threads * plan.move.lanes);
  if (job.source.checks_at_end()) {
    // One hash covers a file, so only several files keep several threads busy.
    put_side_by_side(plan.plan, plan.extents,
                     [&](std::uint64_t offset) { return job.source.end_of_file(offset); });
  }
  plan.strip_size = limits.strip_size;
  plan.piece_size = staged_piece(shares.fair_share);
  const bool in_chunks = job.encrypted() || job.checks_parts();
  plan.gather.largest_gap = in_chunks ? kCopyCost : hints.read_cost;
  plan.gather.read_size = hints.read_size;
  plan.gather.scratch_size = std::min({hints.read_size, hints.cached_size, shares.fair_share});
  plan.cached_size = hints.cached_size;
  return plan;
}

}  // namespace tensorizer
