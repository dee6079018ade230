#include "engine/save/save.h"

#include <algorithm>

#include "engine/save/save_mover.h"
#include "engine/save/sequential_save.h"

namespace tensorizer {

namespace {

// File systems cache a file that is written in pieces of this size in huge pages, so that a mapping
// soon afterwards has few page faults.
constexpr std::uint64_t kStrip = 2 << 20;
constexpr std::uint64_t kBundle = 2 << 20;
// A part of the file is uploaded when it is complete, which is sooner if fewer tensors are in
// progress.
constexpr int kLanesToServers = 4;

// Announces headers and data as the parts that tensorizer keeps in Redis: a key for each, and none
// for the terminator.
void announce(Sink& sink, std::span<const PlacedTensor> tensors) {
  std::vector<NamedRange> parts;
  parts.reserve(2 * tensors.size());
  for (const PlacedTensor& tensor : tensors) {
    if (tensor.header_size > 0) {
      parts.push_back({tensor.spec.name, tensor.header_offset, tensor.header_size});
    }
    if (tensor.spec.data_size() > 0) {
      parts.push_back({tensor.spec.name, tensor.data_offset(), tensor.spec.data_size()});
    }
  }
  sink.announce(parts);
}

// How many workers there are at most, and how many bytes each may hold in one piece.
struct WorkerShares {
  int workers;
  std::uint64_t share;
};

WorkerShares shares_of(const SaveJob& job) {
  KeptUntil kept = KeptUntil::End;
  for (std::size_t i = 0; i < job.items.size(); ++i) kept = std::min(kept, job.kept_until(i));
  const int workers = std::max(
      {job.settings.threads, job.settings.moves_in_flight, job.sink.writes_in_flight(kept)});
  return {workers, fair_share_of(job.settings.memory_ceiling, workers)};
}

std::uint64_t size_of(const SaveJob& job) {
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < job.items.size(); ++i) size += job.data_size(i);
  return size;
}

int lanes_of(const SaveJob& job) {
  if (job.hashes().in_order().empty()) return 1;
  const bool to_server = job.sink.writes_in_flight(KeptUntil::End) > 0;
  return to_server ? std::min(sha256_lanes(), kLanesToServers) : sha256_lanes();
}

std::uint64_t strip_size_of(const SaveJob& job, std::uint64_t share) {
  if (job.encryption()) return kCryptChunk;
  const std::uint64_t usual = std::min(kStrip, share);
  if (job.chunk_size() == 0) return usual;
  // Only tensors in memory are cut, so strips take none.
  return std::max(usual, job.chunk_size() * static_cast<std::uint64_t>(sha256_lanes()));
}

void move_tensors(const SaveJob& job, Cancel& cancel) {
  const SaveSettings& settings = job.settings;
  const bool hashes_in_order = !job.hashes().in_order().empty();
  const bool encrypted = job.encryption().has_value();
  const WorkerShares shares = shares_of(job);
  PlanLimits limits;
  limits.bundle_size = std::min(kBundle, shares.share);
  limits.strip_size = strip_size_of(job, shares.share);
  limits.largest_gap = 0;
  // The page cache keeps a file in blocks that begin on multiples of their size in the file. A
  // block that two writes share becomes many small ones, and the file slow to map. Encrypted data
  // is cut at its chunks instead, because a chunk is encrypted in one piece.
  limits.strips_follow_file = !encrypted;

  std::vector<Extent> extents;
  extents.reserve(job.items.size());
  for (std::size_t i = 0; i < job.items.size(); ++i) {
    const PlacedTensor& tensor = job.tensor(i);
    // The port does not keep staged bytes until a digest that goes in order reaches them.
    const bool in_order = hashes_in_order || job.layout.has_digests();
    const bool whole = job.items[i].read || (job.items[i].staged && in_order);
    extents.push_back({settings.begin + tensor.header_offset, tensor.header_size,
                       tensor.spec.data_size(), whole});
  }
  if (!settings.counted) job.progress.total += size_of(job);

  MoveSettings move_settings;
  move_settings.threads = settings.threads;
  move_settings.moves_in_flight = shares.workers;
  move_settings.hashes = job.hashes();
  move_settings.lanes = lanes_of(job);
  move_settings.open_access = settings.open_access;
  Plan plan = plan_in_order(extents, limits);
  if (hashes_in_order) interleave(plan, settings.threads * move_settings.lanes);
  SaveMover mover(job, job.piece_size(staged_piece(shares.share)));
  job.progress.computed = move(plan, mover, move_settings, cancel);
}

}  // namespace

void save_tensors(Sink& sink, Layout& layout, std::size_t first, std::span<const SaveItem> items,
                  const SaveSettings& settings, Progress& progress, Cancel& cancel) {
  announce(sink, layout.tensors().subspan(first, items.size()));
  move_tensors({sink, layout, first, items, settings, progress}, cancel);
}

void write_terminator(Sink& sink, const Layout& layout, Cancel& cancel) {
  const ConstBytes terminator = layout.terminator();
  if (terminator.empty()) return;
  sink.write(layout.end(), {&terminator, 1}, KeptUntil::Return, cancel);
}

void write_file(Sink& sink, Layout& layout, std::span<const SaveItem> items,
                const SaveSettings& settings, Progress& progress, Cancel& cancel) {
  const std::uint64_t prefix_size = layout.prefix_size();
  sink.begin(prefix_size, layout.file_size());
  if (layout.terminator().empty()) sink.cut_behind();
  announce(sink, layout.tensors());
  const auto write_head = [&] {
    sink.write_head(layout.prefix(sink.start(), prefix_size), cancel);
  };
  const bool head_last = layout.has_digests();
  if (!head_last) write_head();
  SaveSettings placed = settings;
  placed.begin = sink.start() + prefix_size;
  placed.memory_stays = true;
  const SaveJob job{sink, layout, 0, items, placed, progress};
  if (sink.sequential()) {
    if (!settings.counted) progress.total += size_of(job);
    const std::uint64_t piece = job.piece_size(staged_piece(shares_of(job).share));
    SequentialSave(job, piece, cancel).run(head_last ? write_head : std::function<void()>());
  } else {
    move_tensors(job, cancel);
    if (head_last) write_head();
  }
  if (settings.confirm) settings.confirm();
  write_terminator(sink, layout, cancel);
}

void save_file(Sink& sink, Layout& layout, std::span<const SaveItem> items,
               const SaveSettings& settings, Progress& progress, Cancel& cancel) {
  write_file(sink, layout, items, settings, progress, cancel);
  sink.finish(layout.file_size(), cancel);
}

}  // namespace tensorizer
