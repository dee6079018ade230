// Memory for secrets: not swapped out if the system allows that, not in core dumps, between guard
// pages, and wiped when it is freed.
#pragma once

#include <memory>
#include <utility>

#include "base/bytes.h"

namespace tensorizer {

class SecretBytes {
 public:
  SecretBytes() = default;
  // Allocates `size` zeros. Throws std::bad_alloc.
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

  // Keeps the first `size` bytes and wipes the rest.
  void shorten(std::size_t size) noexcept;

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };

  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_ = 0;
};

// Keys are shared, never copied.
using SharedSecret = std::shared_ptr<const SecretBytes>;

// Compares in a time that does not depend on the content. Returns false unless both have 16 or both
// 32 bytes.
bool is_equal_mac(ConstBytes a, ConstBytes b) noexcept;

// Fills `out` with cryptographically secure random bytes.
void fill_random(Bytes out) noexcept;

void wipe(Bytes bytes) noexcept;

}  // namespace tensorizer
