// Ports for the tensors of a job whose bytes cannot move directly between the file and their
// memory: those on another device, of another dtype than they are stored with, or not contiguous.
//
// Bytes to or from a device pass through blocks of pinned memory, on a stream beside the caller's:
// while the device copies one block, the worker fills or empties another one.
// Casts and strides are resolved on the device. The pinned memory goes back to its allocator with
// the job, whose cache then serves the next job.
#pragma once

#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <vector>

#include "engine/move/tensor_port.h"
#include "transfer/device/copy_streams.h"
#include "transfer/device/device_checks.h"
#include "transfer/device/pinned_blocks.h"
#include "transfer/memory/blocks.h"

namespace tensorizer {

// What the ports of all workers share.
struct StagedJob {
  std::vector<Elements> tensors{};
  // The thread-local state of torch on the caller's thread, which workers take over: whether
  // inference mode is on, and the current streams of the devices that have no CopyStreams.
  bool inference = false;
  std::vector<c10::Stream> homes{};
  std::unique_ptr<PinnedBlocks> blocks = std::make_unique<PinnedBlocks>();
  // By device; null if it does not decrypt and digest.
  std::vector<std::unique_ptr<DeviceChecks>> checks{};
  // The last member, so that it is destroyed first, which waits for the copies.
  std::vector<std::unique_ptr<CopyStreams>> devices{};

  // Returns the number of the device in the job; null if the host copies to and from it.
  std::optional<std::size_t> number_of(c10::Device device) const;
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
  // Returns whether the tensor's device can decrypt and digest it. Valid after begin().
  bool can_check(std::uint32_t tensor) const;
  // Returns how many chunks each thread should hash at the end of a load, in place of the devices.
  std::uint64_t last_chunks() const;
  // Call on the thread of a worker. Without tensors, returns a port that discards what is put.
  std::unique_ptr<TensorPort> open_port();
  // Call on the caller's thread when the job is done: makes the current streams wait for all
  // copies, without blocking the host. A job that is destroyed without finish() blocks until its
  // copies end.
  void finish();

 private:
  StagedJob job_;
};

}  // namespace tensorizer
