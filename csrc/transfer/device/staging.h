// Ports for the tensors of a job whose bytes cannot move directly between the file and their
// memory: those on another device, of another dtype than they are stored with, or not contiguous.
//
// Bytes to or from a device pass through pinned memory, two pieces for each worker, on streams
// beside the caller's: while the device copies one piece, the worker fills or empties the other.
// Casts and strides are resolved on the device. The pinned memory goes back to its allocator with
// the job, whose cache then serves the next job.
#pragma once

#include <c10/core/Stream.h>

#include <memory>
#include <vector>

#include "engine/move/tensor_port.h"
#include "transfer/device/copy_streams.h"
#include "transfer/memory/blocks.h"

namespace tensorizer {

// What the ports of all workers share.
struct StagedJob {
  std::vector<Elements> tensors{};
  // The thread-local state of torch on the caller's thread, which workers take over: whether
  // inference mode is on, and the current streams of the devices that have no CopyStreams.
  bool inference = false;
  std::vector<c10::Stream> homes{};
  std::vector<bool> can_check{};  // by device: whether it decrypts and digests
  // The last member, so that it is destroyed first, which waits for the copies.
  std::vector<std::unique_ptr<CopyStreams>> devices{};
};

class Staging {
 public:
  // Keeps the tensor and returns its number, as TensorPort methods take it.
  std::uint32_t add(const at::Tensor& tensor, c10::ScalarType stored);

  // Call on the caller's thread after the last add(). Everything that the job does on a device runs
  // after the work already queued on that device's current stream. Workers run in the inference
  // mode of the calling thread.
  void begin();
  // Returns whether any tensor passes through pinned memory. Valid after begin().
  bool is_pinned() const { return !job_.devices.empty(); }
  // Call on the thread of a worker. Without tensors, returns a port that discards what is put.
  std::unique_ptr<TensorPort> open_port() const;
  // Call on the caller's thread when the job is done: makes the current streams wait for all
  // copies, without blocking the host. A job that is destroyed without finish() blocks until its
  // copies end.
  void finish();

 private:
  StagedJob job_;
};

}  // namespace tensorizer
