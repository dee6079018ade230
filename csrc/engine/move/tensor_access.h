// The access of one worker to the data of tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/bytes.h"
#include "engine/move/scratch.h"
#include "engine/move/tensor_port.h"

namespace tensorizer {

// Reads data for a save that is not in memory, such as tensors of another file. Each worker opens a
// reader and uses it on its own thread.
class TensorReader {
 public:
  virtual ~TensorReader() = default;

  // Fills `out` with the next bytes of the data. The caller reads a tensor from position 0 to its
  // end, in order, with one reader. `tensor` is the number that its item has in `read`. Throws
  // Error.
  virtual void read(std::uint32_t tensor, std::uint64_t position, Bytes out) = 0;
};

struct TensorAccess {
  Scratch scratch{};
  std::unique_ptr<TensorPort> port = std::make_unique<DiscardingPort>();
  std::unique_ptr<TensorReader> reader{};  // null if no item of the job is read
};

// Called on the thread of each worker.
using OpenAccess = std::function<TensorAccess()>;
inline TensorAccess default_access() { return {}; }

}  // namespace tensorizer
