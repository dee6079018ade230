#include "host_allocator.h"

#include <sys/mman.h>

#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "control.h"
#include "device.h"
#include "memory.h"
#include "streams.h"

namespace sim_device {

namespace {

using Block = at::HostBlock<c10::Stream>;

class CachingAllocator final : public at::CachingHostAllocatorImpl<c10::Stream, Moment> {
 public:
  std::pair<void*, void*> allocate(std::size_t size) override {
    const auto allocated = CachingHostAllocatorImpl::allocate(size);
    if (const auto* const block = static_cast<const Block*>(allocated.second)) {
      std::memset(block->ptr_, kNewByte, block->size_);
      add(Counter::PinnedBlocks);
      add(Counter::PinnedBytes, static_cast<std::int64_t>(block->size_));
    }
    return allocated;
  }

  void free(void* context) override {
    if (auto* const block = static_cast<Block*>(context)) {
      add(Counter::PinnedBlocks, -1);
      add(Counter::PinnedBytes, -static_cast<std::int64_t>(block->size_));
      const std::lock_guard lock(block->mutex_);
      if (block->streams_.empty()) std::memset(block->ptr_, kFreedByte, block->size_);
    }
    CachingHostAllocatorImpl::free(context);
  }

  bool record_event(void* pointer, void* context, c10::Stream stream) override {
    return is_left_out(Counter::HostRecordEvent) ||
           CachingHostAllocatorImpl::record_event(pointer, context, stream);
  }

  void copy_data(void* destination, const void* source, std::size_t size) const override {
    std::memcpy(destination, source, size);
  }

  bool owns(const void* address) {
    const std::lock_guard lock(mutex_);
    const auto after = sizes_.upper_bound(address);
    if (after == sizes_.begin()) return false;
    const auto& [start, size] = *std::prev(after);
    return address < static_cast<const std::byte*>(start) + size;
  }

 private:
  void allocate_host_memory(std::size_t size, void** pointer) override {
    void* const memory =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK_WITH(OutOfMemoryError, memory != MAP_FAILED, "sim: no pinned memory for ", size,
                     " bytes: ", std::strerror(errno));
    *pointer = memory;
    const std::lock_guard lock(mutex_);
    sizes_.emplace(memory, size);
  }
  void free_block(Block* block) override {
    {
      const std::lock_guard lock(mutex_);
      sizes_.erase(block->ptr_);
    }
    munmap(block->ptr_, block->size_);
  }
  void record_stream(std::optional<std::vector<Moment>>& events, c10::Stream stream) override {
    events->push_back(end_of(stream));
  }
  bool query_event(Moment& moment) override { return is_over(moment); }
  c10::Stream get_current_stream() const override { return current_stream(current_device()); }
  bool stream_is_capturing(c10::Stream) const override { return is_capturing(); }

  std::mutex mutex_;
  std::map<const void*, std::size_t> sizes_;
};

void release(void* context);

using Allocator = at::CachingHostAllocatorInterface<CachingAllocator, release>;

Allocator& allocator() {
  static Allocator* const leaked = new Allocator;
  return *leaked;
}

void release(void* context) { allocator().free(context); }

const at::HostAllocatorRegistry<kSim> registered(&allocator());

}  // namespace

at::HostAllocator& host_allocator() { return allocator(); }

bool is_pinned(const void* address) { return allocator().impl_->owns(address); }

}  // namespace sim_device
