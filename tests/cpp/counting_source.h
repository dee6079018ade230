// A source that knows what was read of it.
#pragma once

#include <algorithm>
#include <mutex>
#include <numeric>
#include <vector>

#include "memory_file.h"

namespace tensorizer::testing_support {

// Counts how often the byte at each offset is read.
class CountingSource final : public UnsizedSource {
 public:
  explicit CountingSource(ConstBytes bytes) : UnsizedSource(bytes), reads_(bytes.size()) {}

  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override {
    UnsizedSource::read(offset, pieces, cancel);
    const std::lock_guard lock(mutex_);
    for (const Bytes piece : pieces) {
      count(offset, piece.size());
      offset += piece.size();
    }
  }
  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    const std::size_t got = UnsizedSource::read_up_to(offset, out, cancel);
    const std::lock_guard lock(mutex_);
    count(offset, got);
    return got;
  }

  void forget() { std::fill(reads_.begin(), reads_.end(), 0); }
  // Returns how often the byte at an offset was read.
  int times_read(std::uint64_t offset) const { return reads_[offset]; }
  std::uint64_t total() const {
    return std::accumulate(reads_.begin(), reads_.end(), std::uint64_t{0});
  }

 private:
  void count(std::uint64_t offset, std::size_t size) {
    // A plain pointer: with a sanitizer, a vector's operators take longer than the code under test.
    int* const reads = reads_.data() + offset;
    for (std::size_t i = 0; i < size; ++i) ++reads[i];
  }

  std::mutex mutex_;
  std::vector<int> reads_;
};

}  // namespace tensorizer::testing_support
