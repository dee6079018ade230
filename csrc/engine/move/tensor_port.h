// Copies bytes to and from tensors whose memory cannot be filled from a file, or written to one,
// directly: tensors on a device, of another dtype than the file's, or not contiguous.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "engine/move/device_check.h"
#include "engine/move/scratch.h"

namespace tensorizer {

// Memory of a port starts on a multiple of this. Torch copies a complex128 in one access, which
// traps if it is aligned less.
inline constexpr std::size_t kElementAlignment = 16;

// Each worker of a job opens a port of its own and uses it on its own thread. `tensor` is the
// number that its item has in `staged`. Positions and sizes are in bytes as stored, and fall on
// whole elements. Each byte of a tensor passes once, in any order. Methods throw Error.
class TensorPort {
 public:
  virtual ~TensorPort() = default;

  // Returns memory for `size` bytes that this port copies fast, aligned as elements are. It is
  // valid until the next call, which blocks until bytes that are still copied from it have left it.
  virtual Bytes take(std::size_t size) = 0;

  // Copies `bytes`, which are in memory of the last take(), to the tensor from `position` on. The
  // tensor has them after wait(), or when the job has ended.
  virtual void put(std::uint32_t tensor, std::uint64_t position, Bytes bytes) = 0;

  // Copies bytes of the tensor from `position` on to `out`, in memory of the last take(). They have
  // arrived after wait().
  virtual void get(std::uint32_t tensor, std::uint64_t position, Bytes out) = 0;

  // Blocks until the bytes of all put() and get() calls have arrived.
  virtual void wait() = 0;

  // Starts a check of bytes that ports of the job have put to a tensor that its device can check.
  virtual void start(DeviceCheck check) { (void)check; }

  // Returns checks of the job that have ended, each on one port only. If `wait` is set, blocks
  // until one has ended, unless all have.
  virtual std::vector<DeviceCheck> ended(bool wait) {
    (void)wait;
    return {};
  }
};

// Drops the bytes that are put: for data that is only checked, and for jobs without staged tensors.
class DiscardingPort final : public TensorPort {
 public:
  Bytes take(std::size_t size) override { return scratch_.take(size); }
  void put(std::uint32_t, std::uint64_t, Bytes) override {}
  void get(std::uint32_t, std::uint64_t, Bytes) override {}
  void wait() override {}

 private:
  Scratch scratch_;
};

}  // namespace tensorizer
