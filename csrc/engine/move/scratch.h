// Memory on the heap that one worker uses again and again. Not thread-safe.
#pragma once

#include <cstddef>
#include <vector>

#include "base/bytes.h"

namespace tensorizer {

class Scratch {
 public:
  // Returns memory for `size` bytes, aligned as elements are, which is valid until the next call.
  Bytes take(std::size_t size) {
    if (memory_.size() < size) {
      memory_ = std::vector<std::byte>();  // frees the old memory before it takes new
      memory_.resize(size);
    }
    return Bytes(memory_).first(size);
  }

 private:
  std::vector<std::byte> memory_;
};

}  // namespace tensorizer
