// The memory of the devices, and who may use it when.
//
// Memory belongs to the stream that was current when it was allocated. That stream fills it with
// 0xA5 first, so other streams have to wait for it before they touch the memory, as they must where
// a caching allocator hands out what still waits for its last use. Memory that was freed is filled
// with 0xDD once its streams are past that moment, and its addresses never come back: whoever still
// works on it is found.
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

// A block that is freed from now on waits for what `stream` has to do by then.
void use_on_stream(const void* address, const c10::Stream& stream);

// Gives a storage memory of another size, into which the current stream copies what fits.
void resize_storage(c10::StorageImpl& storage, std::size_t size);

// A tensor on a device as a stream's thread can use it: a tensor on the CPU. Owns nothing.
at::Tensor as_seen_by_streams(const at::Tensor& tensor);

// Gives a stream work that uses these tensors; those on the CPU are not looked at. Work on memory
// that was freed, or that belongs to a stream which this one has not waited for, is a violation.
Moment launch(const c10::Stream& stream, const std::vector<at::Tensor>& tensors,
              std::function<void()> work);

}  // namespace sim_device
