#include "engine/load/load.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/load/load_mover.h"

namespace tensorizer {

namespace {

// Returns why parts of tensors cannot be verified, and what to do.
std::string why_not_in_part(const LoadJob& job) {
  const std::string whole = ": load all of it, without a slice, or ";
  if (!job.verifies()) {
    return "its digests cover all of its data" + whole + "without the option 'digest'" +
           (job.encrypted() ? ""
                            : ", or use the file's digest of version 2, and save the file with "
                              "hashes=\"chunked\"");
  }
  if (job.catalogue.chunk_digests().empty()) {
    return "the file has no digests of its chunks" + whole +
           "with verify=\"none\", or save the file with hashes=\"chunked\"";
  }
  return "its CRC32 covers all of its data" + whole +
         "with verify=\"all\", which compares the digests of its chunks";
}

void check(const LoadJob& job, const LoadItem& item) {
  const Entry& entry = job.entry(item);
  const ByteRange range = item.range;
  const auto refuse = [&](const std::string& why) {
    fail({job.source, entry, item.entry}, ErrorKind::InvalidArgument, why);
  };
  if (range.size > entry.data_size || range.position > entry.data_size - range.size) {
    refuse("the " + std::to_string(range.size) + " bytes at position " +
           std::to_string(range.position) + " are not all inside its " +
           std::to_string(entry.data_size) + " bytes of data");
  }
  // The MACs of encrypted chunks are always checked.
  const bool by_macs = job.encrypted() && job.verifies();
  if (job.digests() && !job.checks_parts() && !by_macs && !job.is_whole(item) &&
      !job.verified_by_source()) {
    refuse("a part of it cannot be verified, because " + why_not_in_part(job));
  }
}

// Throws if two items need the same bytes of a source that gives them once.
void check_once(const LoadJob& job) {
  for (std::size_t i = 1; i < job.items.size(); ++i) {
    const LoadItem& item = job.items[i];
    const Entry& entry = job.entry(item);
    if (end_of(job.items[i - 1], job.entry(job.items[i - 1])) <= begin_of(item, entry)) continue;
    fail(
        {job.source, entry, item.entry}, ErrorKind::InvalidArgument,
        "it is to be loaded twice or in parts that overlap, and this source can be read only once: "
        "load the tensor once, and take its parts then");
  }
}

void zero_incomplete(const LoadJob& job, std::span<const std::uint8_t> complete) {
  const LoadSettings& settings = job.settings;
  if (!settings.zero_incomplete || !(job.encrypted() || job.digests())) return;
  // If digests are only computed, no tensor is known to be right before all of them are.
  const bool all = settings.data_digests != nullptr && !settings.data_digests->listed();
  for (std::size_t i = 0; i < job.items.size(); ++i) {
    if (all || complete[i] == 0) settings.zero_incomplete(job.items[i].entry);
  }
}

}  // namespace

LoadItem whole_tensor(const Catalogue& catalogue, std::uint32_t entry) {
  return {entry, {0, catalogue.entries()[entry].data_size}};
}

std::uint64_t begin_of(const LoadItem& item, const Entry& entry) {
  return is_whole(item, entry) ? entry.header_offset : entry.data_offset + item.range.position;
}

std::uint64_t end_of(const LoadItem& item, const Entry& entry) {
  return entry.data_offset + item.range.position + item.range.size;
}

void load(Source& source, Catalogue& catalogue, std::vector<LoadItem> items,
          const LoadSettings& settings, Progress& progress, Cancel& cancel) {
  progress.total = progress.done = 0;
  if (items.empty()) return;
  const std::span<const Entry> entries = catalogue.entries();
  // An empty item comes before one that begins at the same offset: a source that is read once has
  // passed it otherwise.
  std::ranges::sort(items, {}, [&](const LoadItem& item) {
    const Entry& entry = entries[item.entry];
    return std::pair(begin_of(item, entry), end_of(item, entry));
  });
  check_key(source, catalogue, settings.keys);
  const SourceLocation location(source);
  const LoadJob job{source, catalogue, items, settings, location};
  for (const LoadItem& item : items) check(job, item);
  if (source.sequential()) check_once(job);
  const LoadPlan plan = plan_load(job);
  progress.total = plan.size;
  std::vector<std::uint8_t> complete(items.size());
  LoadMover mover(job, plan, progress, complete);
  try {
    progress.computed = move(plan.plan, mover, plan.move, cancel);
    mover.throw_damage();
  } catch (...) {
    zero_incomplete(job, complete);
    throw;
  }
}

}  // namespace tensorizer
