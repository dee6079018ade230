// Measures how much memory a program holds by `new`, and its peak. It replaces the operators of the
// whole program, so only one source file of a program may include it.
#pragma once

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace tensorizer::testing_support {

inline std::atomic<std::size_t> allocated_now{0};
inline std::atomic<std::size_t> allocated_peak{0};

inline void* watched_new(std::size_t size) noexcept {
  void* const memory = std::malloc(size);
  if (memory == nullptr) return nullptr;
  const std::size_t now = allocated_now += malloc_usable_size(memory);
  std::size_t peak = allocated_peak;
  while (now > peak && !allocated_peak.compare_exchange_weak(peak, now)) {
  }
  return memory;
}

inline void watched_delete(void* memory) noexcept {
  if (memory != nullptr) allocated_now -= malloc_usable_size(memory);
  std::free(memory);
}

// Measures the peak of the memory held since the watch was made, beyond what was held then.
class MemoryWatch {
 public:
  MemoryWatch() : before_(allocated_now) { allocated_peak = before_; }
  std::size_t peak() const { return allocated_peak - before_; }

 private:
  std::size_t before_;
};

}  // namespace tensorizer::testing_support

void* operator new(std::size_t size) {
  if (void* const memory = tensorizer::testing_support::watched_new(size)) return memory;
  throw std::bad_alloc();
}
void* operator new[](std::size_t size) { return operator new(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return tensorizer::testing_support::watched_new(size);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return tensorizer::testing_support::watched_new(size);
}
void operator delete(void* memory) noexcept { tensorizer::testing_support::watched_delete(memory); }
void operator delete[](void* memory) noexcept {
  tensorizer::testing_support::watched_delete(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  tensorizer::testing_support::watched_delete(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  tensorizer::testing_support::watched_delete(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  tensorizer::testing_support::watched_delete(memory);
}
void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  tensorizer::testing_support::watched_delete(memory);
}
