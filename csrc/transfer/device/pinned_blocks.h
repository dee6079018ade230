// A ring of blocks of pinned memory that the workers of a job share.
//
// A block that comes back may still be copied to or from a device, and becomes the last one.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

namespace tensorizer {

// Returns bytes of pinned memory.
inline at::Tensor new_pinned(std::int64_t size, at::HostAllocator& allocator) {
  return at::detail::empty_generic({size}, &allocator, c10::DispatchKeySet(c10::DispatchKey::CPU),
                                   at::kByte, std::nullopt);
}

struct PinnedBlock {
  at::Tensor memory{};
  bool is_copied = false;  // since the last wait()
  // Of these copies, by device of the job. Events are recorded again and again, because making one
  // keeps other threads out of the driver.
  std::vector<c10::Event> ends{};

  // Blocks until the copies have ended.
  void wait();
};

// Thread-safe.
class PinnedBlocks {
 public:
  // Called for each worker, before its first take().
  void add_worker();
  // Returns a block of at least `size` bytes, and first blocks until its copies have ended. A
  // worker holds one block at a time.
  PinnedBlock take(std::size_t size, at::HostAllocator& allocator);
  void give_back(PinnedBlock block);

 private:
  PinnedBlock take_any();
  std::mutex mutex_;
  std::size_t workers_ = 0;
  std::size_t made_ = 0;
  std::deque<PinnedBlock> ring_;  // those that came back, oldest first
};

}  // namespace tensorizer
