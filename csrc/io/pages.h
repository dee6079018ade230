// Memory for bytes that are held between calls, in pages that the destructor returns to the system.
//
// free() may keep its memory in the process while a later allocation behind it is in use.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <new>

#include "base/bytes.h"

namespace tensorizer {

class Pages {
 public:
  // Throws std::bad_alloc. `size` is more than 0.
  explicit Pages(std::uint64_t size) {
    void* const start =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) throw std::bad_alloc();
    bytes_ = {static_cast<std::byte*>(start), size};
  }
  ~Pages() { munmap(bytes_.data(), bytes_.size()); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  Bytes bytes() const noexcept { return bytes_; }

 private:
  Bytes bytes_;
};

}  // namespace tensorizer
