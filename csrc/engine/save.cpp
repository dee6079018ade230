#include "engine/save.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>

#include "codec/hmac.h"

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

// A piece of a tensor's data. What is encrypted on its way goes to `out`, which may be where it is.
struct Piece {
  ConstBytes plain;
  Bytes out;
};

struct SaveJob {
  Sink& sink;
  Layout& layout;
  std::size_t first;
  std::span<const SaveItem> items;
  const SaveSettings& settings;
  Progress& progress;

  const PlacedTensor& tensor(std::size_t item) const { return layout.tensors()[first + item]; }
  std::uint64_t data_size(std::size_t item) const { return tensor(item).spec.data_size(); }
  HashKinds hashes() const { return layout.kind().header.hashes; }
  const std::optional<Encryption>& encryption() const { return layout.kind().header.encryption; }

  TensorHeaderImage header(std::size_t item) const {
    return {tensor(item).spec, layout.kind().header, tensor(item).header_size};
  }

  DigestStart digest_start(const TensorHeaderImage& header) const {
    return {header.hashed(), hashes().crc32, hashes().sha256};
  }
  // Of the data alone.
  DigestStart data_digest_start() const { return {{}, false, layout.kind().data_digests}; }

  // Once the MACs are set, too.
  void complete(std::size_t item, TensorHeaderImage& header, const Digests& digests,
                const Digests& data_digest) const {
    if (hashes().crc32) header.set_crc32(digests.crc32);
    if (hashes().sha256) header.set_sha256(digests.sha256);
    if (encryption()) layout.set_header_digest(first + item, sha256(header.bytes()));
    layout.set_data_digest(first + item, data_digest.sha256);
  }

  // How much of a tensor moves at a time where it is not cut: a chunk of what is encrypted.
  std::uint64_t piece_size(std::uint64_t staged) const {
    return encryption() ? kCryptChunk : staged;
  }

  // Bytes of an item's data: where they are, or brought into memory of the stage.
  Piece data(std::size_t item, std::uint64_t position, std::uint64_t size, Stage& stage) const {
    if (items[item].staged) {
      const Bytes out = stage.take(size);
      stage.pass(*items[item].staged, position, out);
      stage.wait();
      return {out, out};
    }
    const ConstBytes plain = items[item].memory.subspan(position, size);
    return {plain, encryption() ? stage.take(size) : Bytes()};
  }

  // What is written of a piece: its ciphertext, whose MACs go into the header, where the file is
  // encrypted. `position` is at the start of a chunk.
  ConstBytes encrypt(TensorHeaderImage& header, std::uint64_t position, const Piece& piece) const {
    if (!encryption()) return piece.plain;
    for (std::uint64_t at = 0; at < piece.plain.size(); at += kCryptChunk) {
      const std::uint64_t chunk = (position + at) / kCryptChunk;
      const std::uint64_t size = std::min(kCryptChunk, piece.plain.size() - at);
      header.set_mac(chunk,
                     encrypt_chunk(encryption()->key->bytes(), nonce_after(header.nonce(), chunk),
                                   piece.plain.subspan(at, size), piece.out.subspan(at, size)));
    }
    return piece.out;
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
    if (settings.memory_stays && !items[item].staged && !encryption()) {
      sink.lend({&section, 1}, section.offset + position, {&bytes, 1}, cancel);
    } else {
      sink.write({&section, 1}, section.offset + position, {&bytes, 1}, cancel);
    }
    progress.done.fetch_add(bytes.size(), std::memory_order_relaxed);
  }
};

// Digests, encrypts and writes at the same time, in any order.
class SaveMover final : public Mover {
 public:
  SaveMover(const SaveJob& job, std::uint64_t piece)
      : job_(job), piece_(piece), headers_(job.items.size()) {}

  void move_bundle(const Range& range, Worker& worker) override {
    if (range.count == 1 && job_.data_size(range.first) > piece_) {
      move_staged(range.first, worker);
      return;
    }
    std::vector<TensorHeaderImage> headers;
    std::vector<Piece> data;
    headers.reserve(range.count);
    data.reserve(range.count);
    gather(range, headers, data, worker);
    digest_bundle(range, headers, data, worker);
    std::vector<Section> sections;
    std::vector<ConstBytes> pieces;
    sections.reserve(2 * headers.size());
    pieces.reserve(2 * headers.size());
    std::uint64_t written = 0;
    for (std::size_t i = 0; i < headers.size(); ++i) {
      sections.push_back(job_.header_section(range.first + i));
      pieces.push_back(headers[i].bytes());
      if (data[i].plain.empty()) continue;
      sections.push_back(job_.data_section(range.first + i));
      pieces.push_back(job_.encryption() ? ConstBytes(data[i].out) : data[i].plain);
      written += data[i].plain.size();
    }
    job_.sink.write(sections, sections.front().offset, pieces, worker.cancel);
    job_.progress.done.fetch_add(written, std::memory_order_relaxed);
  }

  ConstBytes move_slice(const Range& range, Worker& worker) override {
    const Piece piece = job_.data(range.first, range.position, range.size, worker.stage);
    ConstBytes bytes = piece.plain;
    if (job_.encryption()) {
      const ComputeTurns::Turn turn(worker.turns, ComputeTurns::Work::Cipher);
      bytes = job_.encrypt(header_of(range.first), range.position, piece);
    }
    job_.write_data(range.first, range.position, bytes, worker.cancel);
    return piece.plain;
  }

  DigestStart digest_start(std::uint32_t tensor) override {
    return job_.digest_start(header_of(tensor));
  }

  void finish(std::uint32_t tensor, const Digests& digests, Worker& worker) override {
    TensorHeaderImage& header = header_of(tensor);
    RunningDigests data_digest(job_.data_digest_start());
    if (job_.layout.kind().data_digests) {
      const ComputeTurns::Turn turn(worker.turns, ComputeTurns::Work::Digest);
      data_digest.update(job_.items[tensor].memory.first(job_.data_size(tensor)));
    }
    job_.complete(tensor, header, digests, data_digest.finish());
    job_.write_header(tensor, header, worker.cancel);
    headers_[tensor].reset();
  }

 private:
  // Of a cut tensor, whose nonce is the same for all who move its slices.
  TensorHeaderImage& header_of(std::uint32_t tensor) {
    const std::lock_guard lock(mutex_);
    if (!headers_[tensor]) headers_[tensor].emplace(job_.header(tensor));
    return *headers_[tensor];
  }

  void gather(const Range& range, std::vector<TensorHeaderImage>& headers, std::vector<Piece>& data,
              Worker& worker) {
    const auto passes = [&](std::uint32_t item) {
      return job_.items[item].staged || job_.encryption();
    };
    std::uint64_t passing = 0;
    bool staged = false;
    for (std::uint32_t i = range.first; i < range.first + range.count; ++i) {
      if (passes(i)) passing += job_.data_size(i);
      staged = staged || job_.items[i].staged;
    }
    Bytes left = passing > 0 ? worker.stage.take(passing) : Bytes();
    for (std::uint32_t i = range.first; i < range.first + range.count; ++i) {
      headers.push_back(job_.header(i));
      const std::uint64_t size = job_.data_size(i);
      Piece piece;
      if (passes(i)) {
        piece.out = left.first(size);
        left = left.subspan(size);
      }
      if (job_.items[i].staged) {
        worker.stage.pass(*job_.items[i].staged, 0, piece.out);
        piece.plain = piece.out;
      } else {
        piece.plain = job_.items[i].memory.first(size);
      }
      data.push_back(piece);
    }
    if (staged) worker.stage.wait();
  }

  void digest_bundle(const Range& range, std::vector<TensorHeaderImage>& headers,
                     const std::vector<Piece>& data, Worker& worker) {
    std::vector<DigestStart> starts;
    std::vector<ConstBytes> plain;
    starts.reserve(range.count);
    plain.reserve(range.count);
    for (std::size_t i = 0; i < headers.size(); ++i) {
      starts.push_back(job_.digest_start(headers[i]));
      plain.push_back(data[i].plain);
    }
    std::vector<Digests> digests;
    std::vector<Digests> data_digests(range.count);
    {
      const ComputeTurns::Turn turn(worker.turns, ComputeTurns::Work::Digest);
      digests = digest_all(starts, plain);
      if (job_.layout.kind().data_digests) {
        starts.assign(range.count, job_.data_digest_start());
        data_digests = digest_all(starts, plain);
      }
    }
    if (job_.encryption()) {
      const ComputeTurns::Turn turn(worker.turns, ComputeTurns::Work::Cipher);
      for (std::size_t i = 0; i < headers.size(); ++i) job_.encrypt(headers[i], 0, data[i]);
    }
    for (std::size_t i = 0; i < headers.size(); ++i) {
      job_.complete(range.first + i, headers[i], digests[i], data_digests[i]);
    }
  }

  // A staged tensor that is larger than a piece of staging memory may be.
  void move_staged(std::uint32_t item, Worker& worker) {
    TensorHeaderImage header = job_.header(item);
    RunningDigests digests(job_.digest_start(header));
    RunningDigests data_digest(job_.data_digest_start());
    const std::uint64_t size = job_.data_size(item);
    for (std::uint64_t at = 0; at < size; at += piece_) {
      worker.cancel.check();
      const Piece piece = job_.data(item, at, std::min(piece_, size - at), worker.stage);
      {
        const ComputeTurns::Turn turn(worker.turns, ComputeTurns::Work::Digest);
        digests.update(piece.plain);
        data_digest.update(piece.plain);
      }
      ConstBytes bytes = piece.plain;
      if (job_.encryption()) {
        const ComputeTurns::Turn turn(worker.turns, ComputeTurns::Work::Cipher);
        bytes = job_.encrypt(header, at, piece);
      }
      job_.write_data(item, at, bytes, worker.cancel);
    }
    job_.complete(item, header, digests.finish(), data_digest.finish());
    job_.write_header(item, header, worker.cancel);
  }

  const SaveJob& job_;
  const std::uint64_t piece_;
  std::mutex mutex_;
  std::vector<std::optional<TensorHeaderImage>> headers_;  // of cut tensors on their way
};

// For a sink that takes bytes in ascending order: a tensor's digests stand in front of its data, so
// everything is read twice. What is encrypted comes out the same both times.
class AscendingSave {
 public:
  AscendingSave(const SaveJob& job, std::uint64_t piece, Cancel& cancel)
      : job_(job), piece_(piece), cancel_(cancel), stage_(job.settings.make_stage()) {}

  // `write_prefix`: where it has to wait for all headers; else empty.
  void run(const std::function<void()>& write_prefix) {
    std::vector<TensorHeaderImage> headers;
    if (write_prefix) {
      for (std::size_t item = 0; item < job_.items.size(); ++item) headers.push_back(header(item));
      write_prefix();
    }
    for (std::size_t item = 0; item < job_.items.size(); ++item) {
      if (write_prefix) {
        write(item, headers[item]);
      } else {
        TensorHeaderImage image = header(item);
        write(item, image);
      }
    }
  }

 private:
  template <typename Use>
  void each_piece(std::size_t item, Use&& use) {
    const std::uint64_t size = job_.data_size(item);
    for (std::uint64_t at = 0; at < size; at += piece_) {
      cancel_.check();
      use(at, job_.data(item, at, std::min(piece_, size - at), *stage_));
    }
  }

  TensorHeaderImage header(std::size_t item) {
    TensorHeaderImage image = job_.header(item);
    RunningDigests digests(job_.digest_start(image));
    RunningDigests data_digest(job_.data_digest_start());
    if (job_.hashes().crc32 || job_.hashes().sha256 || job_.layout.has_records()) {
      each_piece(item, [&](std::uint64_t at, const Piece& piece) {
        digests.update(piece.plain);
        data_digest.update(piece.plain);
        job_.encrypt(image, at, piece);
      });
    }
    job_.complete(item, image, digests.finish(), data_digest.finish());
    return image;
  }

  void write(std::size_t item, TensorHeaderImage& image) {
    job_.write_header(item, image, cancel_);
    each_piece(item, [&](std::uint64_t at, const Piece& piece) {
      job_.write_data(item, at, job_.encrypt(image, at, piece), cancel_);
    });
  }

  const SaveJob& job_;
  const std::uint64_t piece_;
  Cancel& cancel_;
  const std::unique_ptr<Stage> stage_;
};

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
  move_settings.lanes = hashes.sha256 ? sha256_lanes() : 1;
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
  write_terminator(sink, layout, cancel);
  sink.finish(layout.file_size(), cancel);
}

}  // namespace tensorizer
