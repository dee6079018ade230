#include "transfer/device/pinned_blocks.h"

#include <bit>
#include <utility>

#include "transfer/memory/memory.h"

namespace tensorizer {

void PinnedBlock::wait() {
  if (!std::exchange(is_copied, false)) return;
  for (const c10::Event& end : ends) end.synchronize();
}

void PinnedBlocks::add_worker() {
  const std::lock_guard lock(mutex_);
  ++workers_;
}

PinnedBlock PinnedBlocks::take(std::size_t size, at::HostAllocator& allocator) {
  PinnedBlock block = take_any();
  block.wait();
  if (!block.memory.defined() || block.memory.nbytes() < size) {
    block.memory = at::Tensor();  // frees the old memory before it takes new
    // Allocators round up to powers of two themselves, and then find a cached block of the same
    // size.
    block.memory = taking_memory(size, "pinned memory", [&] {
      return new_pinned(static_cast<std::int64_t>(std::bit_ceil(size)), allocator);
    });
  }
  return block;
}

PinnedBlock PinnedBlocks::take_any() {
  const std::lock_guard lock(mutex_);
  if (made_ < 2 * workers_) {
    ++made_;
    return {};
  }
  // There is one: the other workers hold one each, or have ended with one.
  PinnedBlock oldest = std::move(ring_.front());
  ring_.pop_front();
  return oldest;
}

void PinnedBlocks::give_back(PinnedBlock block) {
  const std::lock_guard lock(mutex_);
  ring_.push_back(std::move(block));
}

}  // namespace tensorizer
