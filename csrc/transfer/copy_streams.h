// Streams that a job uses beside the caller's own.
//
// Memory of a device belongs to the stream that was current when it was allocated, and what a
// caller queues next goes to the current stream. So the streams beside it start after all that it
// has been given before the job, and it goes on when they have come to their end.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <mutex>
#include <vector>

namespace tensorizer {

class CopyStreams {
 public:
  // Beside the stream of `device` that is current on the calling thread; nothing where the device
  // has no such streams, or no pinned memory to copy from. Throws Error(InvalidArgument) while the
  // current stream is captured into a graph.
  static std::unique_ptr<CopyStreams> of(c10::Device device);
  // Until all streams have come to their end, unless they were joined.
  ~CopyStreams();
  CopyStreams(const CopyStreams&) = delete;
  CopyStreams& operator=(const CopyStreams&) = delete;

  c10::Device device() const { return home_.device(); }
  // Gives memory that its streams read and write by themselves.
  at::HostAllocator& pinned_memory() const { return pinned_memory_; }
  // One more; from any thread.
  c10::Stream add();
  // The caller's stream goes on when all have come to their end.
  void join();

 private:
  CopyStreams(c10::Stream home, at::HostAllocator& pinned_memory);

  const c10::Stream home_;
  at::HostAllocator& pinned_memory_;
  c10::Event before_;  // all that the caller's stream was given before
  std::mutex mutex_;
  std::vector<c10::Stream> streams_;
  bool joined_ = false;
};

}  // namespace tensorizer
