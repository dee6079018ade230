// HIP on threads of the CPU, as far as csrc/cuda uses it: hipify makes plain C++ of its kernels,
// and this header runs them, so that they are tested on a machine without a GPU.
//
// A thread of the CPU runs each thread of a block, and one block follows another. Work on a stream
// is done when the call that starts it returns.
#pragma once

#include <array>
#include <atomic>
#include <barrier>
#include <cassert>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ static

struct dim3 {
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  unsigned x, y, z;
};

namespace host_hip {

constexpr unsigned kLanes = 32;

struct Block {
  explicit Block(unsigned threads) : all(threads), values(threads) {
    for (unsigned i = 0; i < threads; i += kLanes) {
      lanes.push_back(std::make_unique<std::barrier<>>(kLanes));
    }
  }

  std::barrier<> all;
  std::vector<std::unique_ptr<std::barrier<>>> lanes;
  std::vector<std::uint32_t> values;  // that lanes exchange
};

inline thread_local Block* block = nullptr;

template <typename Kernel, typename... Arguments>
void launch(Kernel kernel, dim3 grid, dim3 threads, Arguments... arguments);

}  // namespace host_hip

inline thread_local dim3 blockIdx;
inline thread_local dim3 threadIdx;

template <typename Kernel, typename... Arguments>
void host_hip::launch(Kernel kernel, dim3 grid, dim3 threads, Arguments... arguments) {
  assert(grid.x > 0 && grid.y > 0);  // a device returns an error
  Block shared(threads.x);
  std::vector<std::thread> running;
  for (unsigned thread = 0; thread < threads.x; ++thread) {
    running.emplace_back([&, thread] {
      block = &shared;
      threadIdx = dim3(thread);
      for (unsigned y = 0; y < grid.y; ++y) {
        for (unsigned x = 0; x < grid.x; ++x) {
          blockIdx = dim3(x, y);
          kernel(arguments...);
          shared.all.arrive_and_wait();
        }
      }
    });
  }
  for (std::thread& thread : running) thread.join();
}

#define hipLaunchKernelGGL(kernel, grid, threads, memory, stream, ...)  \
  do {                                                                  \
    static_cast<void>(stream);                                          \
    host_hip::launch(kernel, grid, threads __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)

inline void __syncthreads() { host_hip::block->all.arrive_and_wait(); }

inline std::uint32_t __shfl_xor_sync(unsigned, std::uint32_t value, int lanes) {
  host_hip::Block& block = *host_hip::block;
  std::barrier<>& barrier = *block.lanes[threadIdx.x / host_hip::kLanes];
  block.values[threadIdx.x] = value;
  barrier.arrive_and_wait();
  const std::uint32_t other = block.values[threadIdx.x ^ static_cast<unsigned>(lanes)];
  barrier.arrive_and_wait();
  return other;
}

inline void atomicXor(std::uint32_t* at, std::uint32_t value) {
  std::atomic_ref(*at).fetch_xor(value);
}
inline void atomicAdd(unsigned long long* at, unsigned long long value) {
  std::atomic_ref(*at).fetch_add(value);
}

using hipError_t = int;
using hipStream_t = void*;
constexpr hipError_t hipSuccess = 0;

inline hipError_t hipSetDevice(int device) { return device == 0 ? hipSuccess : 101; }
inline hipError_t hipGetDeviceCount(int* count) {
  *count = 1;
  return hipSuccess;
}
inline hipError_t hipGetLastError() { return hipSuccess; }
inline hipError_t hipMemsetAsync(void* at, int value, std::size_t size, hipStream_t) {
  std::memset(at, value, size);
  return hipSuccess;
}
inline const char* hipGetErrorString(hipError_t error) {
  return error == hipSuccess ? "no error" : "invalid device ordinal";
}
