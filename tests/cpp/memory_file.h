// Files in memory for the engine to write and read, which check how the engine uses them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/digest/chunks.h"
#include "engine/load/load.h"
#include "engine/open/read_catalogue.h"
#include "engine/save/save.h"
#include "format/tensors/index.h"
#include "format/tensors/layout.h"
#include "io/sink.h"
#include "io/source.h"
#include "support.h"

namespace tensorizer::testing_support {

// Stores a file in memory. Fails the test if a byte is written twice, beyond the announced end or,
// in a sequential sink, out of order; or if memory that must be kept changes before the end.
class MemorySink final : public Sink {
 public:
  explicit MemorySink(bool sequential = false, std::uint64_t start = 0)
      : sequential_(sequential), start_(start) {}

  bool sequential() const override { return sequential_; }
  std::uint64_t start() const override { return start_; }
  void begin(std::uint64_t head_size, std::optional<std::uint64_t> body_size) override {
    head_size_ = head_size;
    body_size_ = body_size;
  }

  void announce(std::span<const NamedRange> parts) override {
    for (const NamedRange& part : parts) {
      EXPECT_EQ(part.offset, announced);
      EXPECT_GT(part.size, 0U);
      announced += part.size;
      names.emplace_back(part.name);
    }
  }

  void write_head(ConstBytes head, Cancel&) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(head.size(), head_size_);
    take(start_, head);
  }

  void write(std::uint64_t offset, std::span<const ConstBytes> pieces, KeptUntil kept,
             Cancel& cancel) override {
    cancel.check();
    const std::lock_guard lock(mutex_);
    // The terminator comes after all parts.
    EXPECT_LE(offset, announced);
    for (const ConstBytes piece : pieces) {
      take(start_ + head_size_ + offset, piece);
      if (kept == KeptUntil::End) kept_.emplace_back(start_ + head_size_ + offset, piece);
      offset += piece.size();
    }
    if (body_size_) {
      EXPECT_LE(offset, *body_size_);
    }
  }

  void finish(std::uint64_t size, Cancel&) override {
    EXPECT_FALSE(finished);
    for (const auto& [offset, piece] : kept_) {
      EXPECT_TRUE(same(piece, ConstBytes(bytes).subspan(offset, piece.size())));
    }
    finished = true;
    // All bytes are written, without a gap.
    EXPECT_EQ(runs_.size(), 1U);
    EXPECT_EQ(runs_.begin()->second, start_ + head_size_ + size);
    EXPECT_EQ(bytes.size(), start_ + head_size_ + size);
  }

  void abort() noexcept override {}
  const std::string& label() const override { return label_; }

  // The whole file object: `start` bytes, then the file.
  std::vector<std::byte> bytes;
  bool finished = false;
  // The end of the announced parts, and their names.
  std::uint64_t announced = 0;
  std::vector<std::string> names;

 private:
  void take(std::uint64_t offset, ConstBytes piece) {
    if (piece.empty()) return;
    const std::uint64_t end = offset + piece.size();
    if (sequential_) {
      EXPECT_EQ(offset, runs_.empty() ? start_ : runs_.begin()->second);
    }
    if (bytes.size() < end) bytes.resize(end);
    std::memcpy(bytes.data() + offset, piece.data(), piece.size());
    // Joins the bytes with the runs before and behind them, which must not overlap them.
    auto after = runs_.lower_bound(offset);
    std::uint64_t run_end = end;
    if (after != runs_.end()) {
      EXPECT_LE(end, after->first);
      if (after->first == end) {
        run_end = after->second;
        after = runs_.erase(after);
      }
    }
    if (after != runs_.begin()) {
      const auto before = std::prev(after);
      EXPECT_LE(before->second, offset);
      if (before->second == offset) {
        before->second = run_end;
        return;
      }
    }
    runs_[offset] = run_end;
  }

  const bool sequential_;
  const std::uint64_t start_;
  const std::string label_ = "'memory'";
  std::mutex mutex_;
  std::uint64_t head_size_ = 0;
  std::optional<std::uint64_t> body_size_;
  std::map<std::uint64_t, std::uint64_t> runs_;  // the written bytes: begin to end
  std::vector<std::pair<std::uint64_t, ConstBytes>> kept_;
};

// A source that does not know its size.
class UnsizedSource : public Source {
 public:
  explicit UnsizedSource(ConstBytes bytes) : source_(memory_source(bytes, nullptr)) {}

  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override {
    source_->read(offset, pieces, cancel);
  }
  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    return source_->read_up_to(offset, out, cancel);
  }
  std::optional<std::uint64_t> size() const override { return std::nullopt; }
  const std::string& label() const override { return source_->label(); }

 private:
  const std::unique_ptr<Source> source_;
};

// Reads the catalogue of a `.tensors` file.
inline Index read_index(Source& source, FileKeys* keys, Cancel& cancel) {
  return std::move(dynamic_cast<Index&>(*read_catalogue(source, keys, cancel)));
}

inline Index read(ConstBytes bytes) {
  Cancel cancel;
  return read_index(*memory_source(bytes, nullptr), nullptr, cancel);
}

inline Index read_unsized(ConstBytes bytes) {
  Cancel cancel;
  UnsizedSource source(bytes);
  return read_index(source, nullptr, cancel);
}

// A sequential source. Fails the test if it is read from twice at once, or backwards.
class SequentialSource final : public UnsizedSource {
 public:
  using UnsizedSource::UnsizedSource;

  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override {
    const std::unique_lock lock(one_, std::try_to_lock);
    EXPECT_TRUE(lock.owns_lock()) << "two reads at once";
    EXPECT_GE(offset, position_);
    position_ = offset;
    for (const Bytes piece : pieces) position_ += piece.size();
    UnsizedSource::read(offset, pieces, cancel);
  }
  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    EXPECT_GE(offset, position_);
    position_ = offset + out.size();
    return UnsizedSource::read_up_to(offset, out, cancel);
  }
  bool sequential() const override { return true; }

  // Returns the end of what has been read.
  std::uint64_t position() const { return position_; }

 private:
  std::mutex one_;
  std::uint64_t position_ = 0;
};

// The memory of a staged tensor.
struct StagedMemory {
  StagedMemory(std::vector<std::byte> data, std::size_t element_size)
      : bytes(std::move(data)), element(element_size) {}

  std::vector<std::byte> bytes;
  std::size_t element;
  std::atomic<std::uint64_t> passed{0};
};
using StagedMemories = std::vector<std::unique_ptr<StagedMemory>>;

// A port that copies as late as a device may, through two pieces of memory in turn. What a load
// put() is copied from its piece when take() returns that piece again, or in the destructor; what a
// save asks for with get() has arrived after wait().
class LatePort : public TensorPort {
 public:
  explicit LatePort(const StagedMemories& tensors) : tensors_(tensors) {}
  ~LatePort() override {
    copy(pieces_[0]);
    copy(pieces_[1]);
  }

  Bytes take(std::size_t size) override {
    current_ = 1 - current_;
    copy(pieces_[current_]);
    pieces_[current_].memory.assign(size, std::byte{0xA5});
    return pieces_[current_].memory;
  }
  void put(std::uint32_t tensor, std::uint64_t position, Bytes bytes) override {
    pieces_[current_].copies.push_back({part_of(tensor, position, bytes), bytes});
  }
  void get(std::uint32_t tensor, std::uint64_t position, Bytes out) override {
    pieces_[current_].copies.push_back({out, part_of(tensor, position, out)});
  }
  void wait() override { copy(pieces_[current_]); }

 private:
  struct Copy {
    Bytes to;
    ConstBytes from;
  };
  struct Piece {
    std::vector<std::byte> memory;
    std::vector<Copy> copies;
  };

  Bytes part_of(std::uint32_t tensor, std::uint64_t position, ConstBytes bytes) {
    StagedMemory& staged = *tensors_[tensor];
    EXPECT_EQ(position % staged.element, 0U);
    EXPECT_EQ(bytes.size() % staged.element, 0U);
    EXPECT_LE(position + bytes.size(), staged.bytes.size());
    staged.passed += bytes.size();
    return Bytes(staged.bytes).subspan(position, bytes.size());
  }

  void copy(Piece& piece) {
    for (const Copy& c : piece.copies) {
      if (!c.from.empty()) std::memcpy(c.to.data(), c.from.data(), c.from.size());
    }
    piece.copies.clear();
  }

  const StagedMemories& tensors_;
  std::array<Piece, 2> pieces_;
  std::size_t current_ = 0;
};

// A port to a device that hashes chunks with SHA-256.
class HashingPort final : public LatePort {
 public:
  // Adds the bytes that are hashed to `hashed`.
  HashingPort(const StagedMemories& tensors, std::uint64_t& hashed)
      : LatePort(tensors), memories_(tensors), hashed_(hashed) {}

  void start(DeviceCheck check) override {
    wait();
    const ConstBytes bytes =
        ConstBytes(memories_[check.tensor]->bytes).subspan(check.position, check.size);
    check.digests.resize(chunk_count(bytes.size(), check.hashed_chunk));
    const ChunkedBytes chunks{bytes, check.digests};
    digest_chunks({&chunks, 1}, Hash::Sha256, check.hashed_chunk);
    hashed_ += bytes.size();
    checks_.push_back(std::move(check));
  }
  std::vector<DeviceCheck> ended(bool) override { return std::exchange(checks_, {}); }

 private:
  const StagedMemories& memories_;
  std::uint64_t& hashed_;
  std::vector<DeviceCheck> checks_;
};

// Items for whole tensors: into memory, and into the staged tensor of that number.
inline LoadItem item_into(const Catalogue& catalogue, std::uint32_t entry, Bytes memory) {
  LoadItem item = whole_tensor(catalogue, entry);
  item.memory = memory;
  return item;
}
inline LoadItem staged_item(const Catalogue& catalogue, std::uint32_t entry, std::uint32_t tensor) {
  LoadItem item = whole_tensor(catalogue, entry);
  item.staged = StagedRange{tensor};
  return item;
}

// A tensor to save, and the data expected from a load.
struct Sample {
  TensorSpec spec;
  std::vector<std::byte> data;
};

inline Sample sample(std::string name, std::size_t size, std::uint32_t seed = 1) {
  Sample made;
  made.spec.name = std::move(name);
  made.spec.shape = {static_cast<std::int64_t>(size)};
  made.data = pattern(size, seed);
  return made;
}

inline TensorsLayout layout_as(std::span<const Sample> samples, const FileKind& kind,
                               std::uint64_t start = 0) {
  TensorsLayout layout(kind, start);
  for (const Sample& each : samples) layout.add(each.spec);
  return layout;
}
inline TensorsLayout layout_of(std::span<const Sample> samples, HashKinds hashes,
                               std::uint64_t start = 0) {
  return layout_as(samples, {{hashes, {}}, false}, start);
}

inline std::vector<std::byte> saved_as(std::span<const Sample> samples, const FileKind& kind,
                                       const SaveSettings& settings = {}) {
  TensorsLayout layout = layout_as(samples, kind);
  std::vector<SaveItem> items;
  for (const Sample& each : samples) items.push_back({each.data, {}});
  MemorySink sink;
  Progress progress;
  Cancel cancel;
  save_file(sink, layout, items, settings, progress, cancel);
  EXPECT_TRUE(sink.finished);
  return std::move(sink.bytes);
}
inline std::vector<std::byte> saved(std::span<const Sample> samples,
                                    HashKinds hashes = {true, true}) {
  return saved_as(samples, {{hashes, {}}, false});
}

}  // namespace tensorizer::testing_support
