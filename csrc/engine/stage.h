// What bytes pass through that cannot be read into, or written from, the place where they belong.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/bytes.h"

namespace tensorizer {

// Memory that is passed starts on a multiple of this. Torch moves a complex128 at once, which traps
// where it lies otherwise.
inline constexpr std::size_t kElementAlignment = 16;

// Each worker of a job makes one, and uses it on its own thread.
class Stage {
 public:
  virtual ~Stage() = default;

  // Memory for `size` bytes, aligned as elements are, and the caller's until its next call. What
  // was passed from the memory that it had before still arrives.
  virtual Bytes take(std::size_t size) = 0;

  // Passes whole elements of a tensor's data, `position` bytes from its start: a load's from this
  // memory to the tensor, which has them when the job has ended; a save's from the tensor to this
  // memory, which has them after wait(). `tensor` is what its item says. Of a tensor, each byte
  // passes once, in any order.
  virtual void pass(std::uint32_t tensor, std::uint64_t position, Bytes bytes) = 0;

  virtual void wait() = 0;
};

using MakeStage = std::function<std::unique_ptr<Stage>()>;

// Memory of the heap; what passes from it goes nowhere.
class HeapStage : public Stage {
 public:
  Bytes take(std::size_t size) override {
    if (memory_.size() < size) {
      memory_ = std::vector<std::byte>();  // frees the old memory before it takes new
      memory_.resize(size);
    }
    return Bytes(memory_).first(size);
  }
  void pass(std::uint32_t, std::uint64_t, Bytes) override {}
  void wait() override {}

 private:
  std::vector<std::byte> memory_;
};

}  // namespace tensorizer
