// A source that knows what was read of it.
#pragma once

#include <mutex>
#include <vector>

#include "engine/move/runs.h"
#include "memory_file.h"

namespace tensorizer::testing_support {

// Counts how often the byte at each offset is read.
class CountingSource final : public UnsizedSource {
 public:
  using UnsizedSource::UnsizedSource;

  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override {
    UnsizedSource::read(offset, pieces, cancel);
    const std::lock_guard lock(mutex_);
    for (const Bytes piece : pieces) {
      reads_.push_back({offset, piece.size()});
      offset += piece.size();
    }
  }
  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    const std::size_t got = UnsizedSource::read_up_to(offset, out, cancel);
    const std::lock_guard lock(mutex_);
    reads_.push_back({offset, got});
    return got;
  }

  void forget() { reads_.clear(); }
  // Returns how often the byte at an offset was read.
  int times_read(std::uint64_t offset) const {
    int times = 0;
    for (const ByteRange& read : reads_) {
      times += offset >= read.position && offset - read.position < read.size ? 1 : 0;
    }
    return times;
  }
  std::uint64_t total() const {
    std::uint64_t bytes = 0;
    for (const ByteRange& read : reads_) bytes += read.size;
    return bytes;
  }

 private:
  std::mutex mutex_;
  std::vector<ByteRange> reads_;
};

}  // namespace tensorizer::testing_support
