#include "engine/save.h"

#include <algorithm>

#include "engine/ascending_save.h"
#include "engine/save_mover.h"

namespace tensorizer {

namespace {

// What a file system keeps of a file that is written in such pieces, it keeps in huge pages:
// whoever maps it soon afterwards has few page faults.
constexpr std::uint64_t kSlice = 2 << 20;
constexpr std::uint64_t kBundle = 2 << 20;
// A server gets a part of the file when all of it is there: the fewer tensors are open, the sooner.
constexpr int kLanesToServers = 4;

Section terminator_section(const Layout& layout) {
  return {SectionKind::Terminator, {}, layout.end(), sizeof(kTerminator)};
}

std::vector<Section> all_sections(const Layout& layout) {
  std::vector<Section> sections;
  sections.reserve(2 * layout.tensors().size() + 1);
  for (const PlacedTensor& tensor : layout.tensors()) {
    sections.push_back(header_section_of(tensor));
    if (tensor.spec.data_size() > 0) sections.push_back(data_section_of(tensor));
  }
  sections.push_back(terminator_section(layout));
  return sections;
}

// How many workers there are at most, and what each may hold.
struct Shares {
  int workers;
  std::uint64_t share;
};

Shares shares_of(const SaveJob& job) {
  const bool lent = job.settings.memory_stays && !job.encryption() &&
                    std::none_of(job.items.begin(), job.items.end(),
                                 [](const SaveItem& item) { return item.staged.has_value(); });
  const int workers = std::max(
      {job.settings.threads, job.settings.moves_in_flight, job.sink.writes_in_flight(lent)});
  return {workers, fair_share_of(job.settings.memory_ceiling, workers)};
}

std::uint64_t size_of(const SaveJob& job) {
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < job.items.size(); ++i) size += job.data_size(i);
  return size;
}

int lanes_of(const SaveJob& job) {
  if (!job.hashes().sha256) return 1;
  const bool to_server = job.sink.writes_in_flight(true) > 0;
  return to_server ? std::min(sha256_lanes(), kLanesToServers) : sha256_lanes();
}

}  // namespace

void save_tensors(Sink& sink, Layout& layout, std::size_t first, std::span<const SaveItem> items,
                  const SaveSettings& settings, Progress& progress, Cancel& cancel) {
  const SaveJob job{sink, layout, first, items, settings, progress};
  const HashKinds hashes = job.hashes();
  const bool encrypted = job.encryption().has_value();
  const Shares shares = shares_of(job);
  PlanLimits limits;
  limits.bundle_size = std::min(kBundle, shares.share);
  limits.slice_size = encrypted ? kCryptChunk : std::min(kSlice, shares.share);
  limits.largest_gap = 0;
  // What the system keeps of a file, it keeps in blocks that start there; a block that two writes
  // share becomes many small ones, and the file slow to map. But a chunk is encrypted in one piece.
  limits.slices_follow_file = !encrypted;

  std::vector<Extent> extents;
  extents.reserve(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const PlacedTensor& tensor = job.tensor(i);
    // Staged bytes are gone before a digest that goes in order could come back to them.
    const bool whole = items[i].staged && (items[i].in_order || hashes.sha256 ||
                                           layout.kind().data_digests || encrypted);
    extents.push_back({settings.begin + tensor.header_offset, tensor.header_size,
                       tensor.spec.data_size(), whole});
  }
  progress.total += size_of(job);

  MoveSettings move_settings;
  move_settings.threads = settings.threads;
  move_settings.moves_in_flight = shares.workers;
  move_settings.crc32 = hashes.crc32;
  move_settings.sha256 = hashes.sha256;
  move_settings.lanes = lanes_of(job);
  move_settings.make_stage = settings.make_stage;
  Plan plan = plan_in_order(extents, limits);
  if (hashes.sha256) interleave(plan, settings.threads * move_settings.lanes);
  SaveMover mover(job, job.piece_size(staged_chunk(shares.share)));
  progress.computed = move(plan, mover, move_settings, cancel);
}

void write_terminator(Sink& sink, const Layout& layout, Cancel& cancel) {
  const Section section = terminator_section(layout);
  const ConstBytes terminator{reinterpret_cast<const std::byte*>(&kTerminator),
                              sizeof(kTerminator)};
  sink.write({&section, 1}, section.offset, {&terminator, 1}, cancel);
}

void save_file(Sink& sink, Layout& layout, std::span<const SaveItem> items,
               const SaveSettings& settings, Progress& progress, Cancel& cancel) {
  const std::uint64_t prefix_size = layout.prefix_size();
  sink.reserve(prefix_size);
  sink.announce(all_sections(layout), cancel);
  const auto write_prefix = [&] {
    sink.write_prefix(layout.prefix(sink.start(), prefix_size), cancel);
  };
  const bool prefix_last = layout.has_records();
  if (!prefix_last) write_prefix();
  SaveSettings placed = settings;
  placed.begin = sink.start() + prefix_size;
  placed.memory_stays = true;
  if (sink.ascending()) {
    const SaveJob job{sink, layout, 0, items, placed, progress};
    progress.total += size_of(job);
    const std::uint64_t piece = job.piece_size(staged_chunk(shares_of(job).share));
    AscendingSave(job, piece, cancel).run(prefix_last ? write_prefix : std::function<void()>());
  } else {
    save_tensors(sink, layout, 0, items, placed, progress, cancel);
    if (prefix_last) write_prefix();
  }
  if (settings.confirm) settings.confirm();
  write_terminator(sink, layout, cancel);
  sink.finish(layout.file_size(), cancel);
}

}  // namespace tensorizer
