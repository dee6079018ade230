// Blocks of memory of one size that pieces of a job pass through, and that are used again.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "base/bytes.h"

namespace tensorizer {

// Thread-safe.
class ScratchPool {
 public:
  // `size` is that of a block.
  explicit ScratchPool(std::uint64_t size) : size_(size) {}

  // Returns memory for `size` bytes, at most the size of a block. It belongs to the caller until
  // give_back().
  Bytes take(std::uint64_t size) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      all_.push_back(std::make_unique_for_overwrite<std::byte[]>(size_));
      free_.push_back(all_.back().get());
    }
    // The block that was used last may still be in the processor's cache.
    std::byte* const memory = free_.back();
    free_.pop_back();
    return {memory, size};
  }

  void give_back(Bytes memory) {
    const std::lock_guard lock(mutex_);
    free_.push_back(memory.data());
  }

 private:
  const std::uint64_t size_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<std::byte[]>> all_;
  std::vector<std::byte*> free_;
};

}  // namespace tensorizer
