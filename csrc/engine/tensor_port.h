// Passes bytes to and from tensors whose own memory cannot be read from or written to a file: those
// on a device, of another type than they are stored with, or that are not contiguous.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "engine/scratch.h"

namespace tensorizer {

// Memory that passes starts on a multiple of this. Torch moves a complex128 at once, which traps if
// it is aligned less.
inline constexpr std::size_t kElementAlignment = 16;

// Each worker of a job opens a port of its own and uses it on its own thread. `tensor` is the
// number that its item has in `staged`; positions and sizes are those of whole elements, as they
// are stored. Each byte of a tensor passes once, in any order. Methods throw Error.
class TensorPort {
 public:
  virtual ~TensorPort() = default;

  // Returns memory for `size` bytes that this port passes fast, aligned as elements are. It is
  // valid until the next call, which waits for bytes that are still on their way out of it.
  virtual Bytes take(std::size_t size) = 0;

  // Passes bytes in memory of the last take() to the tensor, from `position` on. The tensor has
  // them when the job has ended.
  virtual void put(std::uint32_t tensor, std::uint64_t position, Bytes bytes) = 0;

  // Passes bytes of the tensor from `position` on into memory of the last take(), where they are
  // after wait().
  virtual void get(std::uint32_t tensor, std::uint64_t position, Bytes out) = 0;

  // Blocks until all that get() was asked for is there.
  virtual void wait() = 0;
};

// Drops what is put: for data that is only checked, and for jobs without such tensors.
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
