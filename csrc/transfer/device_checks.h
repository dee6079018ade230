// Runs checks on a device by kernels for the ops of `tensorizer_device` (ops/library.cpp), which a
// library for the device registers with torch, or which this one registers for CUDA.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>
#include <vector>

#include "engine/device_check.h"
#include "transfer/copy_streams.h"

namespace tensorizer {

// Returns whether all ops have a kernel for the device. Call on a thread that called the library.
bool can_check_on(c10::Device device);

// Return the digests of contiguous bytes on a device for which can_check_on() is true. See the ops.
at::Tensor crc32_on_device(const at::Tensor& bytes);
at::Tensor sha256_chunks_on_device(const at::Tensor& bytes, std::int64_t chunk);

// The checks that one worker has started on one device. They run on a stream of their own, beside
// the copies. A device is fast at many chunks and slow at few, so checks that are started while
// others run wait for these, and then run together. Not thread-safe.
class DeviceChecks {
 public:
  explicit DeviceChecks(CopyStreams& streams) : stream_(streams.add()) {}

  // `bytes` are those that the check is about, and `copies` is the stream that copies them.
  void start(DeviceCheck check, at::Tensor bytes, const c10::Stream& copies);

  // Adds the checks that have ended to `ended`, and starts those that wait for them. If `wait` is
  // set, blocks until all have ended.
  void take_ended(bool wait, std::vector<DeviceCheck>& ended);

 private:
  struct Batch {
    std::vector<DeviceCheck> checks;
    std::vector<at::Tensor> bytes;
    // What the ops return, on the device.
    at::Tensor wrong;
    at::Tensor digests;
    at::Tensor crc32s;
    std::optional<c10::Event> end;
  };

  void launch();
  void collect(std::vector<DeviceCheck>& ended);

  const c10::Stream stream_;
  std::optional<c10::Event> copied_;  // the end of the copies for the checks that wait
  Batch waiting_;
  Batch running_;
};

}  // namespace tensorizer
