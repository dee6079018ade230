// Pinned memory of the host, which streams reach late.
//
// This is torch's own caching allocator, so blocks come back, rounded up, when the streams that
// were recorded for them are past the moment when they were freed. A block is filled with 0xA5
// when it is handed out, and with 0xDD when it is freed while no stream is recorded for it: a
// stream that still has to read it, reads that.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace sim_device {

at::HostAllocator& host_allocator();

// Whether an address lies anywhere in a block, even in one that is kept for the next one to ask.
bool is_pinned(const void* address);

}  // namespace sim_device
