#include "engine/load.h"

#include <algorithm>

#include "base/error.h"
#include "engine/load_mover.h"

namespace tensorizer {

namespace {

void zero_incomplete(const LoadJob& job, std::span<const std::uint8_t> complete) {
  const LoadSettings& settings = job.settings;
  if (!settings.zero_incomplete || !(job.encrypted() || job.digests())) return;
  // Without a list of expected digests, no tensor is known to be right before all of them are.
  const bool all =
      settings.expected_digests != nullptr && settings.expected_digests->digests.empty();
  for (std::size_t i = 0; i < job.items.size(); ++i) {
    if (all || complete[i] == 0) settings.zero_incomplete(job.items[i].entry);
  }
}

}  // namespace

void load(Source& source, Index& index, std::vector<LoadItem> items, const LoadSettings& settings,
          Progress& progress, Cancel& cancel) {
  progress.total = progress.done = 0;
  if (items.empty()) return;
  const std::span<const Entry> entries = index.entries();
  std::sort(items.begin(), items.end(), [&](const LoadItem& a, const LoadItem& b) {
    return entries[a.entry].header_offset < entries[b.entry].header_offset;
  });
  if (index.header().encrypted && settings.keys == nullptr) {
    throw Error(ErrorKind::Crypto, source.label() +
                                       ": the file is encrypted, and no key was given: name one "
                                       "with the option 'key'");
  }
  const LoadJob job{source, index, items, settings, place_of(source)};
  const LoadPlan plan = plan_load(job);
  progress.total = plan.size;
  std::vector<std::uint8_t> complete(items.size());
  LoadMover mover(job, plan, progress, complete);
  try {
    progress.computed = move(plan.plan, mover, plan.move, cancel);
  } catch (...) {
    zero_incomplete(job, complete);
    throw;
  }
}

}  // namespace tensorizer
