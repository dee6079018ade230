// Shared code of the bare programs: fresh memory, ranges of a file, threads, a clock.
//
// A bare program does only the work that no load or save can avoid, so it serves as a limit.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace bare {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

[[noreturn]] inline void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags) : number_(::open(path.c_str(), flags, 0600)) {
    if (number_ < 0) fail(path);
  }
  ~Descriptor() { ::close(number_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

// Newly mapped memory whose pages have not been touched yet. Aligned to a huge page.
class Memory {
 public:
  Memory(std::size_t size, bool huge_pages) : size_(size + kHugePage) {
    void* start =
        ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) fail("mmap");
    start_ = static_cast<unsigned char*>(start);
    const auto address = reinterpret_cast<std::uintptr_t>(start);
    data_ = start_ + (kHugePage - address % kHugePage) % kHugePage;
    // If the kernel has no huge pages, this fails, and the limit is measured with small pages.
    if (huge_pages) ::madvise(start, size_, MADV_HUGEPAGE);
  }
  ~Memory() { ::munmap(start_, size_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  unsigned char* data() const { return data_; }

 private:
  std::size_t size_;
  unsigned char* start_;
  unsigned char* data_;
};

inline void read_all(int descriptor, unsigned char* out, std::size_t size, std::size_t offset) {
  while (size > 0) {
    const ssize_t count = ::pread(descriptor, out, size, static_cast<off_t>(offset));
    if (count < 0) fail("pread");
    if (count == 0) throw std::runtime_error("a range is beyond the end of the file");
    out += count;
    size -= static_cast<std::size_t>(count);
    offset += static_cast<std::size_t>(count);
  }
}

struct Range {
  std::size_t file_offset;
  std::size_t size;
  std::size_t memory_offset;
};

// Reads a text file with one "offset size" per line: the data of each tensor in a file. In memory,
// ranges are aligned to 64 bytes.
inline std::vector<Range> read_ranges(const std::string& path) {
  std::ifstream in(path);
  std::vector<Range> ranges;
  std::size_t offset = 0;
  std::size_t size = 0;
  std::size_t memory = 0;
  while (in >> offset >> size) {
    ranges.push_back({offset, size, memory});
    memory += (size + 63) / 64 * 64;
  }
  if (ranges.empty()) throw std::runtime_error("no ranges in " + path);
  return ranges;
}

// Splits ranges into pieces of at most `step` bytes.
inline std::vector<Range> cut(const std::vector<Range>& ranges, std::size_t step) {
  std::vector<Range> pieces;
  for (const Range& range : ranges) {
    for (std::size_t done = 0; done < range.size; done += step) {
      pieces.push_back({range.file_offset + done, std::min(step, range.size - done),
                        range.memory_offset + done});
    }
  }
  return pieces;
}

inline std::size_t memory_of(const std::vector<Range>& ranges) {
  return ranges.back().memory_offset + ranges.back().size;
}

// Runs `work` in `count` threads and joins them. What one of them throws ends the program.
template <typename Work>
void in_threads(int count, const Work& work) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(work);
}

class Clock {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace bare
