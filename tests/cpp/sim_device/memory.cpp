#include "memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <sstream>

#include "control.h"
#include "device.h"
#include "mapping.h"

namespace sim_device {

namespace {

constexpr std::size_t kAlignment = 512;
// The most recently freed memory, up to this size, keeps its fill of kFreedByte. What was freed
// before it goes back to the system.
constexpr std::size_t kFreedBytesKept = std::size_t{64} << 20;

struct Span {
  Address start = 0;
  std::size_t size = 0;
};

struct Block {
  Span span;
  c10::Stream home;
  Moment born;
  std::vector<std::pair<c10::Stream, Moment>> uses{};  // the last use by each stream
  std::vector<c10::Stream> recorded{};
  bool freed = false;  // freed by its owner
  bool dead = false;   // freed, and its streams have done all work from before
  std::size_t streams_to_pass = 0;
};

std::string described(const Span& span) {
  std::ostringstream text;
  text << span.size << " bytes at " << reinterpret_cast<void*>(span.start);
  return text.str();
}

std::string described(const c10::Stream& stream) {
  std::ostringstream text;
  text << "stream " << stream.id() << " of " << stream.device();
  return text.str();
}

class Memory {
 public:
  Memory() {
    for (c10::DeviceIndex device = 0; device < kDevices; ++device) {
      next_[static_cast<std::size_t>(device)] = first_address(device);
    }
  }

  void* allocate(const c10::Stream& home, std::size_t size) {
    const auto device = static_cast<std::size_t>(home.device_index());
    // Freed blocks are only released once their streams have done their work.
    if (!fits(device, size)) settle();
    const std::lock_guard lock(mutex_);
    TORCH_CHECK_WITH(OutOfMemoryError, is_room(device, size),
                     "sim out of memory: tried to allocate ", size, " bytes on ", home.device(),
                     ", where ", held_[device], " of ", limit(), " bytes are taken");
    const Span span{next_[device], size};
    TORCH_CHECK(device_of(span.start + size - 1) == home.device(),
                "sim: the addresses are used up, which never come back");
    next_[device] += (size + kAlignment - 1) / kAlignment * kAlignment;
    held_[device] += size;
    add(Counter::DeviceBlocks);
    add(Counter::DeviceBytes, static_cast<std::int64_t>(size));
    std::byte* const bytes = seen_by_streams(span.start);
    Moment born = enqueue(home, [bytes, size] { std::memset(bytes, kNewByte, size); });
    blocks_.emplace(span.start, Block{.span = span, .home = home, .born = std::move(born)});
    return reinterpret_cast<void*>(span.start);
  }

  void free(Address address) {
    const std::lock_guard lock(mutex_);
    Block& block = blocks_.at(address);
    block.freed = true;
    add(Counter::DeviceBlocks, -1);
    add(Counter::DeviceBytes, -static_cast<std::int64_t>(block.span.size));
    std::vector<c10::Stream> streams = block.recorded;
    streams.push_back(block.home);
    for (const auto& [stream, last] : block.uses) {
      if (std::find(streams.begin(), streams.end(), stream) == streams.end() &&
          !starts_after(block.home, last)) {
        violation(described(block.span) + " of " + described(block.home) + " are freed while " +
                  described(stream) + " may still use them, which nobody has recorded");
      }
    }
    block.streams_to_pass = streams.size();
    for (const c10::Stream& stream : streams) {
      enqueue(stream, [this, address] { pass(address); });
    }
  }

  void record(Address address, const c10::Stream& stream) {
    const std::lock_guard lock(mutex_);
    Block* const block = find({address, 0});
    if (block == nullptr || block->home == stream) return;
    if (std::find(block->recorded.begin(), block->recorded.end(), stream) ==
        block->recorded.end()) {
      block->recorded.push_back(stream);
    }
  }

  Moment launch(const c10::Stream& stream, const std::vector<Span>& spans,
                std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    for (const Span& span : spans) check_order(stream, span);
    Moment end = enqueue(stream, [this, stream, spans, work = std::move(work)] {
      for (const Span& span : spans) check_alive(stream, span);
      work();
    });
    for (const Span& span : spans) {
      if (Block* const block = find(span)) note_use(*block, stream, end);
    }
    return end;
  }

 private:
  bool fits(std::size_t device, std::size_t size) {
    const std::lock_guard lock(mutex_);
    return is_room(device, size);
  }

  // The functions below require that the caller holds the mutex.

  bool is_room(std::size_t device, std::size_t size) const {
    const auto most = static_cast<std::size_t>(limit());
    return size <= most && held_[device] <= most - size;
  }

  Block* find(const Span& span) {
    auto found = blocks_.upper_bound(span.start);
    if (found == blocks_.begin()) return nullptr;
    Block& block = std::prev(found)->second;
    return span.start + span.size <= block.span.start + block.span.size ? &block : nullptr;
  }

  static void note_use(Block& block, const c10::Stream& stream, const Moment& end) {
    for (auto& [other, last] : block.uses) {
      if (other == stream) {
        last = end;
        return;
      }
    }
    block.uses.emplace_back(stream, end);
  }

  void check_order(const c10::Stream& stream, const Span& span) {
    const Block* const block = find(span);
    if (block == nullptr || block->freed) {
      violation(described(stream) + " is given work on " + described(span) +
                ", which are not allocated");
    } else if (!starts_after(stream, block->born)) {
      violation(described(stream) + " is given work on " + described(span) + ", which belong to " +
                described(block->home) + ", and has not waited for it");
    }
  }

  // The functions below lock the mutex themselves.

  void check_alive(const c10::Stream& stream, const Span& span) {
    const std::lock_guard lock(mutex_);
    const Block* const block = find(span);
    if (block != nullptr && !block->dead) return;
    violation(described(stream) + " works on " + described(span) + ", which were freed");
  }

  // Called when one of the streams of a freed block has done all work from before the free.
  void pass(Address address) {
    const std::lock_guard lock(mutex_);
    Block& block = blocks_.at(address);
    if (--block.streams_to_pass > 0) return;
    block.dead = true;
    std::memset(seen_by_streams(address), kFreedByte, block.span.size);
    held_[static_cast<std::size_t>(block.home.device_index())] -= block.span.size;
    freed_.push_back(block.span);
    freed_bytes_ += block.span.size;
    while (freed_bytes_ > kFreedBytesKept) {
      const Span oldest = freed_.front();
      freed_.pop_front();
      freed_bytes_ -= oldest.size;
      discard(oldest.start, oldest.size);
      blocks_.erase(oldest.start);
    }
  }

  std::mutex mutex_;  // guards all members below
  std::array<Address, kDevices> next_{};
  std::array<std::size_t, kDevices> held_{};  // bytes of blocks that are not dead
  std::map<Address, Block> blocks_;
  std::deque<Span> freed_;
  std::size_t freed_bytes_ = 0;
};

// Never destroyed, because the threads of the streams never end and may still use it.
Memory& memory() {
  static Memory* const all = new Memory;
  return *all;
}

void release(void* address) { memory().free(address_of(address)); }

void copy_bytes(void* destination, const void* source, std::size_t size) {
  const Span to{address_of(destination), size};
  const Span from{address_of(source), size};
  memory().launch(
      current_stream(device_of(address_of(destination)).index()), {to, from},
      [to, from] { std::memcpy(seen_by_streams(to.start), seen_by_streams(from.start), to.size); });
}

class SimAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    const c10::Device device(kSim, current_device());
    if (size == 0) return c10::DataPtr(nullptr, device);
    void* const address = memory().allocate(current_stream(device.index()), size);
    return c10::DataPtr(address, address, release, device);
  }
  c10::DeleterFnPtr raw_deleter() const override { return release; }
  void copy_data(void* destination, const void* source, std::size_t size) const override {
    copy_bytes(destination, source, size);
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    use_on_stream(data.get(), stream);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "sim: the counters of torch.ops.sim say more");
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
};

const c10::AllocatorRegisterer<kSim> registered(&device_allocator());

}  // namespace

c10::Allocator& device_allocator() {
  static SimAllocator* const allocator = new SimAllocator;
  return *allocator;
}

void use_on_stream(const void* address, const c10::Stream& stream) {
  memory().record(address_of(address), stream);
}

void resize_storage(c10::StorageImpl& storage, std::size_t size) {
  TORCH_CHECK(storage.resizable(), "sim: that storage cannot be resized");
  const c10::DeviceGuard guard(storage.device());
  c10::DataPtr data = device_allocator().allocate(size);
  if (const std::size_t kept = std::min(size, storage.nbytes()); kept > 0) {
    copy_bytes(data.mutable_get(), storage.data(), kept);
  }
  storage.set_data_ptr(std::move(data));
  storage.set_nbytes(size);
}

at::Tensor as_seen_by_streams(const at::Tensor& tensor) {
  const at::Tensor seen =
      at::from_blob(seen_by_streams(address_of(tensor.const_data_ptr())), tensor.sizes(),
                    tensor.strides(), at::TensorOptions().dtype(tensor.dtype()));
  seen._set_conj(tensor.is_conj());
  seen._set_neg(tensor.is_neg());
  return seen;
}

Moment launch(const c10::Stream& stream, const std::vector<at::Tensor>& tensors,
              std::function<void()> work) {
  std::vector<Span> spans;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_privateuseone() || tensor.numel() == 0) continue;
    spans.push_back({address_of(tensor.const_data_ptr()),
                     at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(),
                                                      tensor.element_size())});
  }
  return memory().launch(stream, spans, std::move(work));
}

Moment launch(const c10::Stream& stream, const std::vector<DeviceBytes>& used,
              std::function<void()> work) {
  std::vector<Span> spans;
  for (const DeviceBytes& each : used) {
    if (each.size > 0) spans.push_back({address_of(each.data), each.size});
  }
  return memory().launch(stream, spans, std::move(work));
}

}  // namespace sim_device
