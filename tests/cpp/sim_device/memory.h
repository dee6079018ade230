// The memory of the devices, and the rules by which streams may use it.
//
// Memory belongs to the stream that was current when it was allocated. That stream fills it with
// 0xA5 first, so other streams must wait for it before they touch the memory, as they must with a
// caching allocator, which returns memory whose last use may not be over yet. Freed memory is
// filled with 0xDD once its streams have passed the point of the free, and its addresses are never
// reused, so work that still uses it is detected.
//
// Everything here may be called from any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include <functional>
#include <vector>

#include "streams.h"

namespace sim_device {

inline constexpr int kNewByte = 0xA5;
inline constexpr int kFreedByte = 0xDD;

c10::Allocator& device_allocator();

// Makes the block at `address`, when it is freed, wait for all work that `stream` has by then.
void use_on_stream(const void* address, const c10::Stream& stream);

// Gives a storage memory of another size. The current stream copies the bytes that fit into it.
void resize_storage(c10::StorageImpl& storage, std::size_t size);

// Returns a CPU tensor over the memory of a tensor on a device, for use on a stream's thread. It
// does not own the memory.
at::Tensor as_seen_by_streams(const at::Tensor& tensor);

// Gives a stream work that uses these tensors. Tensors on the CPU are not checked. Work on memory
// that was freed, or that belongs to a stream which this one has not waited for, is a violation.
Moment launch(const c10::Stream& stream, const std::vector<at::Tensor>& tensors,
              std::function<void()> work);

// Does so for work that uses these bytes of a device.
struct DeviceBytes {
  const void* data;
  std::size_t size;
};
Moment launch(const c10::Stream& stream, const std::vector<DeviceBytes>& used,
              std::function<void()> work);

}  // namespace sim_device
