// A source that knows what was read of it.
#pragma once

#include <algorithm>
#include <mutex>
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
      for (std::size_t i = 0; i < piece.size(); ++i) ++reads_[offset++];
    }
  }
  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    const std::size_t got = UnsizedSource::read_up_to(offset, out, cancel);
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < got; ++i) ++reads_[offset + i];
    return got;
  }

  void forget() { std::fill(reads_.begin(), reads_.end(), 0); }
  // Returns how often the byte at an offset was read.
  int times_read(std::uint64_t offset) const { return reads_[offset]; }
  std::uint64_t total() const {
    std::uint64_t sum = 0;
    for (const int count : reads_) sum += static_cast<std::uint64_t>(count);
    return sum;
  }

 private:
  std::mutex mutex_;
  std::vector<int> reads_;
};

}  // namespace tensorizer::testing_support
