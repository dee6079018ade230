// Runs DeviceChecks with the kernels of the ops `tensorizer_device::*` (ops/library.cpp). This
// library registers kernels for CUDA; another library may register them for its own device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

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

// The checks of one worker on one device. They run on their own stream, concurrently with copies.
// A device is efficient only with many chunks at a time, so checks that are started while a batch
// runs are queued, and become the next batch. Not thread-safe.
class DeviceChecks {
 public:
  explicit DeviceChecks(CopyStreams& streams) : stream_(streams.add()) {}

  // Starts or queues a check of `bytes`, after the work that is on the stream `copies` by now.
  void start(DeviceCheck check, at::Tensor bytes, const c10::Stream& copies);

  // Appends the checks that have ended to `ended`, and starts the queued ones. If `wait` is set,
  // blocks until all checks have ended.
  void take_ended(bool wait, std::vector<DeviceCheck>& ended);

 private:
  struct Batch {
    std::vector<DeviceCheck> checks;
    std::vector<at::Tensor> bytes;
    // Results of the ops, on the device.
    at::Tensor wrong;
    at::Tensor digests;
    at::Tensor crc32s;
    std::optional<c10::Event> end;
  };

  void launch();
  void collect(std::vector<DeviceCheck>& ended);

  const c10::Stream stream_;
  std::optional<c10::Event> copied_;  // the copies of the bytes of queued checks
  Batch queued_;
  Batch running_;
};

}  // namespace tensorizer
