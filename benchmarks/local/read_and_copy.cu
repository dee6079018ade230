// Reads a file into a ring of pinned memory and copies it to a GPU, with as many threads as it is
// told: what no load that reads can beat. Prints seconds.
//
//     read_and_copy FILE THREADS
#include <cuda_runtime.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kPiece = 2 << 20;

struct Block {
  char* memory;
  cudaEvent_t end;  // of its copy
};

void check(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "read_and_copy: %s failed\n", what);
  std::exit(1);
}

void check(cudaError_t error) { check(error == cudaSuccess, cudaGetErrorString(error)); }

}  // namespace

int main(int count, char** words) {
  check(count == 3, "read_and_copy FILE THREADS");
  const std::size_t size = std::filesystem::file_size(words[1]);
  const int threads = std::atoi(words[2]);
  const int file = open(words[1], O_RDONLY);
  check(file >= 0, "open");
  char* device = nullptr;
  check(cudaMalloc(&device, size));
  cudaStream_t stream;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::deque<Block> ring(2 * static_cast<std::size_t>(threads));
  for (Block& block : ring) {
    check(cudaMallocHost(&block.memory, kPiece));
    check(cudaEventCreateWithFlags(&block.end, cudaEventDisableTiming));
  }
  std::mutex mutex;
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t at; (at = next.fetch_add(kPiece)) < size;) {
      const std::size_t wanted = std::min(kPiece, size - at);
      mutex.lock();
      const Block block = ring.front();
      ring.pop_front();
      mutex.unlock();
      check(cudaEventSynchronize(block.end));
      const auto length = pread(file, block.memory, wanted, static_cast<off_t>(at));
      check(length == static_cast<ssize_t>(wanted), "pread");
      check(cudaMemcpyAsync(device + at, block.memory, wanted, cudaMemcpyHostToDevice, stream));
      check(cudaEventRecord(block.end, stream));
      const std::lock_guard lock(mutex);
      ring.push_back(block);
    }
  };
  // The first time is a warm-up.
  for (int round = 0; round < 2; ++round) {
    next = 0;
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> workers;
    for (int i = 0; i < threads; ++i) workers.emplace_back(work);
    for (std::thread& worker : workers) worker.join();
    check(cudaStreamSynchronize(stream));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (round == 1) std::printf("%.6f\n", seconds.count());
  }
}
