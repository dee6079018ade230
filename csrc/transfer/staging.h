// The tensors of a job whose bytes cannot move straight between a file and their memory: those on
// other devices, those of another type than they are stored with, and those that are not
// contiguous.
//
// What goes to or comes from a device passes through pinned memory, two pieces for each worker, on
// streams beside the caller's: while the device copies one piece, the worker fills or empties the
// other. Types are cast, and strides resolved, on the device. The pinned memory goes back to its
// allocator with the job, so that the next one finds it.
#pragma once

#include <c10/core/Stream.h>

#include <memory>
#include <vector>

#include "engine/tensor_port.h"
#include "transfer/blocks.h"
#include "transfer/copy_streams.h"

namespace tensorizer {

// What the ports of all workers share.
struct StagedJob {
  std::vector<Elements> tensors{};
  // What torch keeps for each thread, as the caller's thread has it: whether inference mode is on,
  // and the streams that are current, of devices without streams beside them.
  bool inference = false;
  std::vector<c10::Stream> homes{};
  std::vector<std::unique_ptr<CopyStreams>> devices{};  // goes first, and waits
};

class Staging {
 public:
  // Keeps the tensor, and returns the number that ports know it by.
  std::uint32_t add(const at::Tensor& tensor, c10::ScalarType stored);

  // On the caller's thread, when all tensors are there. What the job does on devices comes after
  // all that their current streams have been given, and torch is in the caller's mode there.
  void begin();
  // Whether anything passes through pinned memory.
  bool is_pinned() const { return !job_.devices.empty(); }
  // On the thread of a worker. Without tensors the port drops what is put.
  std::unique_ptr<TensorPort> open_port() const;
  // On the caller's thread, when the job is done: the current streams go on when all is there. A
  // job that is dropped before is waited for.
  void finish();

 private:
  StagedJob job_;
};

}  // namespace tensorizer
