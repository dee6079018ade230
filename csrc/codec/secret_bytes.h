// Memory for what must not leak: it is not swapped out where the system allows that, is in no core
// dump, stands between pages that nobody may touch, and is wiped when it goes.
#pragma once

#include <memory>
#include <utility>

#include "base/bytes.h"

namespace tensorizer {

class SecretBytes {
 public:
  SecretBytes() = default;
  // `size` zeros; throws std::bad_alloc.
  explicit SecretBytes(std::size_t size);
  explicit SecretBytes(ConstBytes content);
  SecretBytes(SecretBytes&& other) noexcept
      : memory_(std::move(other.memory_)), size_(std::exchange(other.size_, 0)) {}
  SecretBytes& operator=(SecretBytes&& other) noexcept {
    memory_ = std::move(other.memory_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  bool empty() const noexcept { return size_ == 0; }
  Bytes bytes() noexcept { return {memory_.get(), size_}; }
  ConstBytes bytes() const noexcept { return {memory_.get(), size_}; }

  // Forgets what stands behind the first `size` bytes.
  void shorten(std::size_t size) noexcept;

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };

  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_ = 0;
};

// Keys are never copied.
using SharedSecret = std::shared_ptr<const SecretBytes>;

// In a time that does not depend on where they differ; of 16 or 32 bytes.
bool is_equal_mac(ConstBytes a, ConstBytes b) noexcept;

// Bytes that nobody can guess.
void fill_random(Bytes out) noexcept;

void wipe(Bytes bytes) noexcept;

}  // namespace tensorizer
