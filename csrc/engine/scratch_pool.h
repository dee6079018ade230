// Memory that pieces of a job pass through, of one size and used again. Any thread.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "base/bytes.h"

namespace tensorizer {

class ScratchPool {
 public:
  explicit ScratchPool(std::uint64_t size) : size_(size) {}

  // Memory for `size` bytes, at most those of a piece, and the caller's until it gives them back.
  Bytes take(std::uint64_t size) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      all_.push_back(std::make_unique_for_overwrite<std::byte[]>(size_));
      free_.push_back(all_.back().get());
    }
    // The last one that was in use may still be in the processor's cache.
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
