// The streams that a job uses on a device, beside the caller's own: one for copies, which all
// workers share, because a device copies one piece at a time in each direction, and others that
// are added.
//
// Memory of a device belongs to the stream that was current when it was allocated, and the caller's
// next work is queued on the current stream. So the job's streams start after all work that was
// queued on the current stream before the job, and the current stream continues after all of
// theirs.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <mutex>
#include <vector>

namespace tensorizer {

// Returns the end of the work that is queued on a stream.
c10::Event end_of(const c10::Stream& stream);

class CopyStreams {
 public:
  // Returns the streams beside the stream of `device` that is current on the calling thread; null
  // if the device has no pool of streams, or no pinned memory to copy from. Throws
  // Error(InvalidArgument) while the current stream is captured into a graph.
  static std::unique_ptr<CopyStreams> of(c10::Device device);
  // Blocks until all streams have finished, unless join() was called.
  ~CopyStreams();
  CopyStreams(const CopyStreams&) = delete;
  CopyStreams& operator=(const CopyStreams&) = delete;

  c10::Device device() const { return home_.device(); }
  // Returns the allocator of pinned host memory, which the device's streams access directly.
  at::HostAllocator& pinned_memory() const { return pinned_memory_; }
  // Returns the stream for copies.
  const c10::Stream& copies() const { return copies_; }
  // Adds a stream. Thread-safe.
  c10::Stream add();
  // Makes the caller's stream wait for all streams, without blocking the host. Call after the last
  // add().
  void join();

 private:
  CopyStreams(c10::Stream home, at::HostAllocator& pinned_memory);

  const c10::Stream home_;
  at::HostAllocator& pinned_memory_;
  c10::Event before_;  // the end of the work queued on `home_` before the job
  std::mutex mutex_;
  std::vector<c10::Stream> streams_;
  const c10::Stream copies_;
  bool joined_ = false;
};

}  // namespace tensorizer
