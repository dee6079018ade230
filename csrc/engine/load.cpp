#include "engine/load.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "codec/crc32.h"
#include "engine/read_index.h"
#include "format/tensor_header.h"

namespace tensorizer {

namespace {

// Bytes between wanted ones that are cheaper to read along than to skip with another read.
constexpr std::uint64_t kLargestGap = 16 << 10;
// A huge page: smaller slices would let two workers meet in one, where both clear it and one waits.
constexpr std::uint64_t kHashedSlice = 2 << 20;

class LoadMover final : public Mover {
 public:
  LoadMover(Source& source, Index& index, std::span<const LoadItem> items,
            const LoadSettings& settings, Progress& progress)
      : source_(source),
        index_(index),
        items_(items),
        settings_(settings),
        progress_(progress),
        place_(place_of(source)),
        headers_(items.size()) {}

  bool needs_header(const LoadItem& item) const {
    return settings_.verify != Verify::None || !entry(item).dtype;
  }

  Extent extent(const LoadItem& item) const {
    const Entry& e = entry(item);
    const bool header = needs_header(item);
    if (header) check_header_size(e, item.entry, place_);
    // Staged bytes are gone before a digest that goes in order could come back to them.
    const bool whole = item.staged && settings_.verify != Verify::None;
    return {header ? e.header_offset : e.data_offset, header ? e.header_size() : 0, e.data_size,
            whole};
  }

  void set_chunk(std::uint64_t size) { chunk_ = size; }

  void move_bundle(const Range& range, Worker& worker) override {
    const std::span<const LoadItem> items = items_.subspan(range.first, range.count);
    const Extent first = extent(items.front());
    if (items.size() == 1 && items[0].staged && first.header_size + first.data_size > chunk_) {
      move_staged(range.first, worker);
      return;
    }
    const Bytes scratch = read_bundle(items, worker);
    if (settings_.verify != Verify::None) {
      const ComputeTurns::Turn turn(worker.turns, ComputeTurns::Work::Digest);
      verify_bundle(range, items, scratch);
    }
    std::size_t at = 0;
    for (const LoadItem& item : items) {
      const Entry& e = entry(item);
      const Bytes header = take_header(item, scratch, at);
      if (settings_.verify == Verify::None && !header.empty()) parse_header(item, header);
      if (item.staged) {
        const ComputeTurns::Turn turn(worker.turns, ComputeTurns::Work::Copy);
        worker.stage.pass(*item.staged, 0, scratch.subspan(at, e.data_size));
        at += e.data_size;
      }
      moved(e.data_size);
    }
  }

  ConstBytes move_slice(const Range& range, Worker& worker) override {
    const LoadItem& item = items_[range.first];
    const Entry& e = entry(item);
    const bool header = range.position == 0 && needs_header(item);
    const Bytes target = item.staged ? worker.stage.take(range.size)
                                     : item.memory.subspan(range.position, range.size);
    if (item.in_place) {
      if (header) headers_[range.first] = copy_header(e);
    } else if (header) {
      std::vector<std::byte>& bytes = headers_[range.first];
      bytes.resize(e.header_size());
      const std::array<Bytes, 2> pieces{Bytes(bytes), target};
      source_.read(e.header_offset, pieces, worker.cancel);
    } else {
      source_.read(e.data_offset + range.position, {&target, 1}, worker.cancel);
    }
    if (item.staged) {
      const ComputeTurns::Turn turn(worker.turns, ComputeTurns::Work::Copy);
      worker.stage.pass(*item.staged, range.position, target);
    }
    moved(range.size);
    return target;
  }

  DigestStart digest_start(std::uint32_t tensor) override {
    const LoadItem& item = items_[tensor];
    if (!needs_header(item)) return {};
    const TensorHeader header = parse_header(item, headers_[tensor]);
    return settings_.verify == Verify::None ? DigestStart{} : digests_wanted(item, header);
  }

  void finish(std::uint32_t tensor, const Digests& digests, Worker&) override {
    if (settings_.verify != Verify::None) compare(items_[tensor], expected_[tensor], digests);
    headers_[tensor] = std::vector<std::byte>();  // frees its memory
  }

  void expect_tensors(std::size_t count) { expected_.resize(count); }

 private:
  struct Expected {
    std::optional<std::uint32_t> crc32;
    std::optional<std::array<std::byte, kSha256Size>> sha256;
  };

  const Entry& entry(const LoadItem& item) const { return index_.entries()[item.entry]; }

  void moved(std::uint64_t bytes) { progress_.done.fetch_add(bytes, std::memory_order_relaxed); }

  [[noreturn]] void fail(const LoadItem& item, ErrorKind kind, const std::string& what) const {
    throw Error(kind, std::string(place_.label) + ": " + describe(entry(item).name, item.entry) +
                          ": " + what);
  }

  // Reads the range of the bundle into its items, and what has no place there (headers, staged
  // data) into staging memory, in file order.
  Bytes read_bundle(std::span<const LoadItem> items, Worker& worker) {
    std::size_t kept = 0;
    std::size_t largest_gap = 0;
    std::uint64_t begin = extent(items.front()).offset;
    std::uint64_t end = begin;
    for (const LoadItem& item : items) {
      const Extent e = extent(item);
      largest_gap = std::max<std::size_t>(largest_gap, e.offset - end);
      kept += e.header_size + (item.staged ? e.data_size : 0);
      end = e.offset + e.header_size + e.data_size;
    }
    const Bytes scratch = worker.stage.take(kept + largest_gap);
    const Bytes unused = scratch.subspan(kept);
    std::vector<Bytes> pieces;
    pieces.reserve(3 * items.size());
    const auto read_pieces = [&] {
      if (!pieces.empty()) source_.read(begin, pieces, worker.cancel);
      pieces.clear();
    };
    std::size_t at = 0;
    for (const LoadItem& item : items) {
      const Extent e = extent(item);
      if (item.in_place) {
        // Its bytes are there, and so is its header.
        read_pieces();
        if (e.header_size > 0) {
          std::memcpy(scratch.data() + at, settings_.mapping.data() + e.offset, e.header_size);
          at += e.header_size;
        }
        continue;
      }
      if (pieces.empty()) begin = end = e.offset;
      if (e.offset > end) pieces.push_back(unused.first(e.offset - end));
      if (e.header_size > 0) pieces.push_back(scratch.subspan(at, e.header_size));
      at += e.header_size;
      if (item.staged) {
        pieces.push_back(scratch.subspan(at, e.data_size));
        at += e.data_size;
      } else if (e.data_size > 0) {
        pieces.push_back(item.memory);
      }
      end = e.offset + e.header_size + e.data_size;
    }
    read_pieces();
    return scratch;
  }

  // The item's header in the staging memory of its bundle; `at` goes on to its data.
  Bytes take_header(const LoadItem& item, Bytes scratch, std::size_t& at) const {
    if (!needs_header(item)) return {};
    const Bytes header = scratch.subspan(at, entry(item).header_size());
    at += header.size();
    return header;
  }

  void verify_bundle(const Range& range, std::span<const LoadItem> items, Bytes scratch) {
    std::vector<DigestStart> starts;
    std::vector<ConstBytes> data;
    starts.reserve(items.size());
    data.reserve(items.size());
    std::size_t at = 0;
    for (const LoadItem& item : items) {
      const Bytes header = take_header(item, scratch, at);
      starts.push_back(digests_wanted(item, parse_header(item, header)));
      if (item.staged) {
        data.push_back(scratch.subspan(at, entry(item).data_size));
        at += data.back().size();
      } else {
        data.push_back(item.memory.first(entry(item).data_size));
      }
    }
    const std::vector<Digests> digests = digest_all(starts, data);
    for (std::size_t i = 0; i < items.size(); ++i) {
      compare(items[i], expected_[range.first + i], digests[i]);
    }
  }

  // A staged tensor that is larger than staging memory may be, piece by piece.
  void move_staged(std::uint32_t tensor, Worker& worker) {
    const LoadItem& item = items_[tensor];
    const Entry& e = entry(item);
    std::vector<std::byte> header(e.header_size());
    const Bytes header_piece(header);
    source_.read(e.header_offset, {&header_piece, 1}, worker.cancel);
    const TensorHeader parsed = parse_header(item, header);
    const bool verified = settings_.verify != Verify::None;
    RunningDigests digests(verified ? digests_wanted(item, parsed) : DigestStart{});
    for (std::uint64_t at = 0; at < e.data_size; at += chunk_) {
      worker.cancel.check();
      const Bytes piece = worker.stage.take(std::min(chunk_, e.data_size - at));
      source_.read(e.data_offset + at, {&piece, 1}, worker.cancel);
      if (verified) {
        const ComputeTurns::Turn turn(worker.turns, ComputeTurns::Work::Digest);
        digests.update(piece);
      }
      const ComputeTurns::Turn turn(worker.turns, ComputeTurns::Work::Copy);
      worker.stage.pass(*item.staged, at, piece);
      moved(piece.size());
    }
    if (verified) compare(item, expected_[tensor], digests.finish());
  }

  std::vector<std::byte> copy_header(const Entry& e) const {
    const ConstBytes header = settings_.mapping.subspan(e.header_offset, e.header_size());
    return {header.begin(), header.end()};
  }

  TensorHeader parse_header(const LoadItem& item, Bytes bytes) {
    const Entry& e = entry(item);
    const TensorHeader header = parse_tensor_header(bytes, index_.header(), e, item.entry, place_);
    if (!e.dtype) index_.set_dtype(item.entry, *header.dtype.dtype);
    return header;
  }

  DigestStart digests_wanted(const LoadItem& item, const TensorHeader& header) {
    Expected& expected = expected_[static_cast<std::size_t>(&item - items_.data())];
    expected = {header.crc32, header.sha256};
    if (settings_.verify == Verify::Crc32 && header.crc32) expected.sha256.reset();
    if (!expected.crc32 && !expected.sha256) {
      fail(item, ErrorKind::InvalidFormat,
           "there is nothing to verify: the file was saved without hashes");
    }
    return {header.hashed, expected.crc32.has_value(), expected.sha256.has_value()};
  }

  void compare(const LoadItem& item, const Expected& expected, const Digests& digests) const {
    const char* wrong = nullptr;
    if (expected.crc32 && *expected.crc32 != digests.crc32) wrong = "CRC32";
    if (expected.sha256 && *expected.sha256 != digests.sha256) wrong = "SHA-256";
    if (!wrong) return;
    fail(item, ErrorKind::HashMismatch,
         std::string("its bytes from offset ") + std::to_string(entry(item).header_offset) +
             " on do not have the " + wrong + " that was saved with them: the file is damaged");
  }

  Source& source_;
  Index& index_;
  const std::span<const LoadItem> items_;
  const LoadSettings& settings_;
  Progress& progress_;
  const FilePlace place_;
  std::uint64_t chunk_ = 0;
  std::vector<std::vector<std::byte>> headers_;  // of cut tensors, while they are digested
  std::vector<Expected> expected_;
};

}  // namespace

void load(Source& source, Index& index, std::vector<LoadItem> items, const LoadSettings& settings,
          Progress& progress, Cancel& cancel) {
  progress.total = progress.done = 0;
  if (items.empty()) return;
  const std::span<const Entry> entries = index.entries();
  std::sort(items.begin(), items.end(), [&](const LoadItem& a, const LoadItem& b) {
    return entries[a.entry].header_offset < entries[b.entry].header_offset;
  });
  if (index.header().encrypted) {
    throw Error(ErrorKind::Crypto,
                source.label() + ": the file is encrypted, and this release cannot decrypt");
  }
  LoadMover mover(source, index, items, settings, progress);
  const bool verify = settings.verify != Verify::None;
  if (verify) mover.expect_tensors(items.size());

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
  move_settings.crc32 = verify;
  move_settings.sha256 = verify;
  const bool lanes = settings.verify == Verify::All && !source.sequential();
  move_settings.lanes = lanes ? sha256_lanes() : 1;
  move_settings.make_stage = settings.make_stage;

  const int workers = std::max(move_settings.threads, move_settings.moves_in_flight);
  const std::uint64_t fair_share = fair_share_of(settings.memory_ceiling, workers);
  PlanLimits limits;
  limits.bundle_size = std::min(hints.read_size, fair_share);
  const bool staged =
      std::any_of(items.begin(), items.end(), [](const LoadItem& item) { return item.staged; });
  // A power of two, so that no slice ends inside a page of the tensor.
  limits.slice_size = std::bit_floor(std::min(
      hints.read_size, staged ? fair_share : std::max(settings.memory_ceiling, kSmallestSlice)));
  if (verify) limits.slice_size = std::min(limits.slice_size, kHashedSlice);
  limits.slices_follow_file = false;
  limits.largest_gap = kLargestGap;
  mover.set_chunk(staged_chunk(fair_share));

  Plan plan = plan_in_order(extents, limits);
  if (lanes) interleave(plan, settings.threads * move_settings.lanes);
  progress.computed = move(plan, mover, move_settings, cancel);
}

}  // namespace tensorizer
