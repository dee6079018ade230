#include "engine/save.h"

#include <algorithm>
#include <optional>

#include "codec/crc32.h"

namespace tensorizer {

namespace {

// What a file system keeps of a file that is written in such pieces, it keeps in huge pages:
// whoever maps it soon afterwards has few page faults.
constexpr std::uint64_t kSlice = 2 << 20;
constexpr std::uint64_t kBundle = 2 << 20;

Section header_section_of(const PlacedTensor& tensor) {
  return {SectionKind::Header, tensor.spec.name, tensor.header_offset, tensor.header_size};
}
Section data_section_of(const PlacedTensor& tensor) {
  return {SectionKind::Data, tensor.spec.name, tensor.data_offset(), tensor.spec.data_size()};
}
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

struct SaveJob {
  Sink& sink;
  const Layout& layout;
  std::size_t first;
  std::span<const SaveItem> items;
  const SaveSettings& settings;
  Progress& progress;

  const PlacedTensor& tensor(std::size_t item) const { return layout.tensors()[first + item]; }
  std::uint64_t data_size(std::size_t item) const { return tensor(item).spec.data_size(); }

  TensorHeaderImage header(std::size_t item) const {
    return {tensor(item).spec, layout.hashes(), tensor(item).header_size};
  }

  DigestStart digest_start(const TensorHeaderImage& header) const {
    return {{header.bytes(), {}}, layout.hashes().crc32, layout.hashes().sha256};
  }

  void set_digests(TensorHeaderImage& header, const Digests& digests) const {
    if (layout.hashes().crc32) header.set_crc32(digests.crc32);
    if (layout.hashes().sha256) header.set_sha256(digests.sha256);
  }

  // Bytes of an item's data: where they are, or brought into memory of the stage.
  ConstBytes data(std::size_t item, std::uint64_t position, std::uint64_t size,
                  Stage& stage) const {
    if (!items[item].staged) return items[item].memory.subspan(position, size);
    const Bytes out = stage.take(size);
    stage.pass(*items[item].staged, position, out);
    stage.wait();
    return out;
  }

  Section header_section(std::size_t item) const { return header_section_of(tensor(item)); }
  Section data_section(std::size_t item) const { return data_section_of(tensor(item)); }

  void write_header(std::size_t item, const TensorHeaderImage& header, Cancel& cancel) const {
    const Section section = header_section(item);
    const ConstBytes piece = header.bytes();
    sink.write({&section, 1}, section.offset, {&piece, 1}, cancel);
  }

  void write_data(std::size_t item, std::uint64_t position, ConstBytes bytes,
                  Cancel& cancel) const {
    const Section section = data_section(item);
    if (settings.memory_stays && !items[item].staged) {
      sink.lend({&section, 1}, section.offset + position, {&bytes, 1}, cancel);
    } else {
      sink.write({&section, 1}, section.offset + position, {&bytes, 1}, cancel);
    }
    progress.done.fetch_add(bytes.size(), std::memory_order_relaxed);
  }
};

// Digests and writes at the same time, in any order.
class SaveMover final : public Mover {
 public:
  SaveMover(const SaveJob& job, std::uint64_t chunk)
      : job_(job), chunk_(chunk), headers_(job.items.size()) {}

  void move_bundle(const Range& range, Worker& worker) override {
    if (range.count == 1 && job_.data_size(range.first) > chunk_) {
      move_staged(range.first, worker);
      return;
    }
    std::vector<TensorHeaderImage> headers;
    std::vector<ConstBytes> data;
    headers.reserve(range.count);
    data.reserve(range.count);
    gather(range, headers, data, worker);
    {
      const ComputeTurns::Turn turn(worker.turns, ComputeTurns::Work::Digest);
      std::vector<DigestStart> starts;
      starts.reserve(range.count);
      for (const TensorHeaderImage& header : headers) starts.push_back(job_.digest_start(header));
      const std::vector<Digests> digests = digest_all(starts, data);
      for (std::size_t i = 0; i < headers.size(); ++i) {
        job_.set_digests(headers[i], digests[i]);
      }
    }
    std::vector<Section> sections;
    std::vector<ConstBytes> pieces;
    sections.reserve(2 * headers.size());
    pieces.reserve(2 * headers.size());
    std::uint64_t written = 0;
    for (std::size_t i = 0; i < headers.size(); ++i) {
      sections.push_back(job_.header_section(range.first + i));
      pieces.push_back(headers[i].bytes());
      if (data[i].empty()) continue;
      sections.push_back(job_.data_section(range.first + i));
      pieces.push_back(data[i]);
      written += data[i].size();
    }
    job_.sink.write(sections, sections.front().offset, pieces, worker.cancel);
    job_.progress.done.fetch_add(written, std::memory_order_relaxed);
  }

  ConstBytes move_slice(const Range& range, Worker& worker) override {
    const ConstBytes bytes = job_.data(range.first, range.position, range.size, worker.stage);
    job_.write_data(range.first, range.position, bytes, worker.cancel);
    return bytes;
  }

  DigestStart digest_start(std::uint32_t tensor) override {
    headers_[tensor].emplace(job_.header(tensor));
    return job_.digest_start(*headers_[tensor]);
  }

  void finish(std::uint32_t tensor, const Digests& digests, Worker& worker) override {
    TensorHeaderImage& header = *headers_[tensor];
    job_.set_digests(header, digests);
    job_.write_header(tensor, header, worker.cancel);
    headers_[tensor].reset();
  }

 private:
  void gather(const Range& range, std::vector<TensorHeaderImage>& headers,
              std::vector<ConstBytes>& data, Worker& worker) {
    std::uint64_t staged = 0;
    for (std::uint32_t i = range.first; i < range.first + range.count; ++i) {
      if (job_.items[i].staged) staged += job_.data_size(i);
    }
    Bytes left = staged > 0 ? worker.stage.take(staged) : Bytes();
    for (std::uint32_t i = range.first; i < range.first + range.count; ++i) {
      headers.push_back(job_.header(i));
      const std::uint64_t size = job_.data_size(i);
      if (!job_.items[i].staged) {
        data.push_back(job_.items[i].memory.first(size));
        continue;
      }
      worker.stage.pass(*job_.items[i].staged, 0, left.first(size));
      data.push_back(left.first(size));
      left = left.subspan(size);
    }
    if (staged > 0) worker.stage.wait();
  }

  // A staged tensor that is larger than a piece of staging memory may be.
  void move_staged(std::uint32_t item, Worker& worker) {
    TensorHeaderImage header = job_.header(item);
    RunningDigests digests(job_.digest_start(header));
    const std::uint64_t size = job_.data_size(item);
    for (std::uint64_t at = 0; at < size; at += chunk_) {
      worker.cancel.check();
      const ConstBytes bytes = job_.data(item, at, std::min(chunk_, size - at), worker.stage);
      {
        const ComputeTurns::Turn turn(worker.turns, ComputeTurns::Work::Digest);
        digests.update(bytes);
      }
      job_.write_data(item, at, bytes, worker.cancel);
    }
    job_.set_digests(header, digests.finish());
    job_.write_header(item, header, worker.cancel);
  }

  const SaveJob& job_;
  const std::uint64_t chunk_;
  std::vector<std::optional<TensorHeaderImage>> headers_;  // of cut tensors on their way
};

// For a sink that takes bytes in ascending order: a tensor's digests stand in front of its data, so
// everything is read twice.
void save_ascending(const SaveJob& job, std::uint64_t chunk, Stage& stage, Cancel& cancel) {
  for (std::size_t item = 0; item < job.items.size(); ++item) {
    const std::uint64_t size = job.data_size(item);
    const auto each_chunk = [&](auto&& use) {
      for (std::uint64_t at = 0; at < size; at += chunk) {
        cancel.check();
        use(at, job.data(item, at, std::min(chunk, size - at), stage));
      }
    };
    TensorHeaderImage header = job.header(item);
    if (job.layout.hashes().crc32 || job.layout.hashes().sha256) {
      RunningDigests digests(job.digest_start(header));
      each_chunk([&](std::uint64_t, ConstBytes bytes) { digests.update(bytes); });
      job.set_digests(header, digests.finish());
    }
    job.write_header(item, header, cancel);
    each_chunk(
        [&](std::uint64_t at, ConstBytes bytes) { job.write_data(item, at, bytes, cancel); });
  }
}

}  // namespace

void save_tensors(Sink& sink, const Layout& layout, std::size_t first,
                  std::span<const SaveItem> items, const SaveSettings& settings, Progress& progress,
                  Cancel& cancel) {
  const SaveJob job{sink, layout, first, items, settings, progress};
  const HashKinds hashes = layout.hashes();
  const bool lent = settings.memory_stays &&
                    std::none_of(items.begin(), items.end(),
                                 [](const SaveItem& item) { return item.staged.has_value(); });
  const int workers =
      std::max({settings.threads, settings.moves_in_flight, sink.writes_in_flight(lent)});
  const std::uint64_t fair_share = fair_share_of(settings.memory_ceiling, workers);
  PlanLimits limits;
  limits.bundle_size = std::min(kBundle, fair_share);
  limits.slice_size = std::min(kSlice, fair_share);
  limits.largest_gap = 0;
  // What the system keeps of a file, it keeps in blocks that start there; a block that two writes
  // share becomes many small ones, and the file slow to map.
  limits.slices_follow_file = true;

  std::vector<Extent> extents;
  extents.reserve(items.size());
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const PlacedTensor& tensor = job.tensor(i);
    const std::uint64_t size = tensor.spec.data_size();
    // Staged bytes are gone before a digest that goes in order could come back to them.
    extents.push_back({settings.begin + tensor.header_offset, tensor.header_size, size,
                       items[i].staged && hashes.sha256});
    total += size;
  }
  progress.total += total;

  if (sink.ascending()) {
    save_ascending(job, staged_chunk(fair_share), *settings.make_stage(), cancel);
    return;
  }
  MoveSettings move_settings;
  move_settings.threads = settings.threads;
  move_settings.moves_in_flight = workers;
  move_settings.crc32 = hashes.crc32;
  move_settings.sha256 = hashes.sha256;
  move_settings.lanes = hashes.sha256 ? sha256_lanes() : 1;
  move_settings.make_stage = settings.make_stage;
  Plan plan = plan_in_order(extents, limits);
  if (hashes.sha256) interleave(plan, settings.threads * move_settings.lanes);
  SaveMover mover(job, staged_chunk(fair_share));
  progress.computed = move(plan, mover, move_settings, cancel);
}

void write_terminator(Sink& sink, const Layout& layout, Cancel& cancel) {
  const Section section = terminator_section(layout);
  const ConstBytes terminator{reinterpret_cast<const std::byte*>(&kTerminator),
                              sizeof(kTerminator)};
  sink.write({&section, 1}, section.offset, {&terminator, 1}, cancel);
}

void save_file(Sink& sink, const Layout& layout, std::span<const SaveItem> items,
               const SaveSettings& settings, Progress& progress, Cancel& cancel) {
  const std::uint64_t prefix_size = layout.prefix_size();
  sink.reserve(prefix_size);
  sink.announce(all_sections(layout), cancel);
  sink.write_prefix(layout.prefix(sink.start(), prefix_size), cancel);
  SaveSettings placed = settings;
  placed.begin = sink.start() + prefix_size;
  placed.memory_stays = true;
  save_tensors(sink, layout, 0, items, placed, progress, cancel);
  write_terminator(sink, layout, cancel);
  sink.finish(layout.file_size(), cancel);
}

}  // namespace tensorizer
