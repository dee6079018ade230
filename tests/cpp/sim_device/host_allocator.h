// Pinned memory of the host, which streams access late.
//
// This is torch's own caching allocator: it rounds sizes up, and reuses a freed block when every
// stream recorded for it has passed the point at which the block was freed. A block is filled with
// 0xA5 when it is allocated, and with 0xDD when it is freed while no stream is recorded for it, so
// a stream that still has to read it reads 0xDD.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace sim_device {

at::HostAllocator& host_allocator();

// Returns whether an address lies in a block, free blocks in the cache included.
bool is_pinned(const void* address);

}  // namespace sim_device
