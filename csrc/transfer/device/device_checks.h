// Runs DeviceChecks with the kernels of the ops `tensorizer_device::*` (ops/library.cpp). This
// library registers kernels for CUDA; another library may register them for its own device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <mutex>
#include <optional>
#include <vector>

#include "engine/move/device_check.h"
#include "transfer/device/copy_streams.h"

namespace tensorizer {

// Returns whether all ops have a kernel for the device. Call on a thread that called the library.
bool can_check_on(c10::Device device);

// Return the digests of contiguous bytes on a device for which can_check_on() is true. See the ops.
at::Tensor crc32_on_device(const at::Tensor& bytes);
at::Tensor sha256_chunks_on_device(const at::Tensor& bytes, std::int64_t chunk);

// Returns how many chunks a thread of the host hashes while the device ends its last two batches,
// which takes as long as hashing two chunks.
std::uint64_t last_chunks_for(c10::Device device);

// The checks of a job on one device. They run on their own stream, concurrently with copies. A
// device is efficient only with many chunks at a time, so checks that are started while a batch
// runs are queued, and become the next batch. Thread-safe.
class DeviceChecks {
 public:
  // `streams` must outlive the last call of a method.
  explicit DeviceChecks(CopyStreams& streams) : streams_(streams) {}

  // Starts or queues a check of `bytes`, after the work that is on the stream for copies by now.
  void start(DeviceCheck check, at::Tensor bytes);

  // Appends checks that have ended to `ended`, and starts the queued ones. If `wait` is set, blocks
  // until a check has ended, unless all have.
  void take_ended(bool wait, std::vector<DeviceCheck>& ended);

 private:
  struct Queue {
    std::vector<DeviceCheck> checks;
    std::vector<at::Tensor> bytes;
  };
  // Its results are on their way to pinned memory, and are there after `end`.
  struct Batch {
    Queue started{};
    at::Tensor wrong{};
    at::Tensor digests{};
    at::Tensor crc32s{};
    std::optional<c10::Event> end{};
  };

  // Both are called by the worker that has locked the batch.
  void launch(Queue queue);
  void collect(std::vector<DeviceCheck>& ended);

  CopyStreams& streams_;
  std::mutex queue_mutex_;
  Queue queued_;            // guarded by `queue_mutex_`
  std::mutex batch_mutex_;  // may be held while the device runs
  // Guarded by `batch_mutex_`.
  std::optional<c10::Stream> stream_;
  Batch running_;
};

}  // namespace tensorizer
