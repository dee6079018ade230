// The limit: the bare work of a load or a save, with nothing around it.
//
//   limit MODE FILE RANGES [--threads N] [--piece BYTES] [--repeat N] [--output PATH]
//
// RANGES is a text file with one "offset size" per line: where the data of FILE's tensors is.
//
//   read         pread of every range into fresh memory that asks for huge pages
//   read-crc32   the same, and a CRC32 of every piece while it is in cache
//   read-all     the same, and a SHA-256 of every range by libcrypto as well
//   write        pwrite of as many bytes from ordinary memory into a fresh file at PATH, never
//   synced write-crc32, write-all    the same with these sums, taken before the piece is written
//
// The clock covers what a loader cannot do without: asking for memory, starting threads, the work,
// and joining them. Memory and file are new in every repetition. Prints JSON.
//
//   g++ -std=c++20 -O2 -o limit limit.cpp -pthread -lcrypto -ldeflate
#include <fcntl.h>
#include <libdeflate.h>
#include <openssl/evp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
// What a thread takes at once when ranges may be cut: whole huge pages, so that two threads seldom
// wait for the same page fault, and little enough that all threads end together.
constexpr std::size_t kTurn = std::size_t{8} << 20;

struct Job {
  bool write = false;
  bool crc32 = false;
  bool sha256 = false;
  std::string file;
  std::string ranges;
  std::string output;
  int threads = 2;
  std::size_t piece = std::size_t{1} << 20;
  int repeat = 1;
};

struct Range {
  std::size_t file_offset;
  std::size_t size;
  std::size_t memory_offset;
};

[[noreturn]] void fail(const std::string& what) {
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

// Pages that nobody has touched yet.
class Memory {
 public:
  Memory(std::size_t size, bool huge_pages) : size_(size + kHugePage) {
    void* start =
        ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) fail("mmap");
    start_ = static_cast<unsigned char*>(start);
    const auto address = reinterpret_cast<std::uintptr_t>(start);
    data_ = start_ + (kHugePage - address % kHugePage) % kHugePage;
    // Where the kernel has no huge pages, this fails and the limit is that of small ones.
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

void read_all(int descriptor, unsigned char* out, std::size_t size, std::size_t offset) {
  while (size > 0) {
    const ssize_t count = ::pread(descriptor, out, size, static_cast<off_t>(offset));
    if (count < 0) fail("pread");
    if (count == 0) throw std::runtime_error("a range lies behind the end of the file");
    out += count;
    size -= static_cast<std::size_t>(count);
    offset += static_cast<std::size_t>(count);
  }
}

void write_all(int descriptor, const unsigned char* data, std::size_t size, std::size_t offset) {
  while (size > 0) {
    const ssize_t count = ::pwrite(descriptor, data, size, static_cast<off_t>(offset));
    if (count < 0) fail("pwrite");
    data += count;
    size -= static_cast<std::size_t>(count);
    offset += static_cast<std::size_t>(count);
  }
}

using Sha256 = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

// What one thread does. Returns something that depends on every sum, so that none can be left out.
std::uint64_t work(const Job& job, const std::vector<Range>& turns, std::atomic<std::size_t>& next,
                   int descriptor, unsigned char* memory) {
  std::uint64_t seen = 0;
  const Sha256 sha256(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  for (std::size_t i = next++; i < turns.size(); i = next++) {
    const Range& turn = turns[i];
    std::uint32_t crc = 0;
    if (job.sha256) EVP_DigestInit_ex(sha256.get(), EVP_sha256(), nullptr);
    for (std::size_t done = 0; done < turn.size; done += job.piece) {
      const std::size_t size = std::min(job.piece, turn.size - done);
      unsigned char* piece = memory + turn.memory_offset + done;
      if (!job.write) read_all(descriptor, piece, size, turn.file_offset + done);
      if (job.crc32) crc = libdeflate_crc32(crc, piece, size);
      if (job.sha256) EVP_DigestUpdate(sha256.get(), piece, size);
      if (job.write) write_all(descriptor, piece, size, turn.file_offset + done);
    }
    seen += crc;
    if (job.sha256) {
      unsigned char digest[EVP_MAX_MD_SIZE];
      EVP_DigestFinal_ex(sha256.get(), digest, nullptr);
      seen += digest[0];
    }
  }
  return seen;
}

std::uint64_t run_threads(const Job& job, const std::vector<Range>& turns, int descriptor,
                          unsigned char* memory) {
  std::atomic<std::size_t> next{0};
  std::atomic<std::uint64_t> seen{0};
  std::atomic<bool> failed{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < job.threads; ++i) {
    threads.emplace_back([&] {
      try {
        seen += work(job, turns, next, descriptor, memory);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "limit: %s\n", error.what());
        failed = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failed) throw std::runtime_error("a thread failed");
  return seen;
}

std::vector<Range> read_ranges(const std::string& path) {
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

// How the threads share the work. A SHA-256 is one long chain, so a range stays with one thread,
// and the largest go first, which lets all threads end at about the same time.
std::vector<Range> cut(const std::vector<Range>& ranges, bool whole) {
  std::vector<Range> turns;
  for (const Range& range : ranges) {
    const std::size_t step = whole ? std::max<std::size_t>(range.size, 1) : kTurn;
    for (std::size_t done = 0; done < range.size; done += step) {
      turns.push_back({range.file_offset + done, std::min(step, range.size - done),
                       range.memory_offset + done});
    }
  }
  if (whole) {
    std::stable_sort(turns.begin(), turns.end(),
                     [](const Range& a, const Range& b) { return a.size > b.size; });
  }
  return turns;
}

double seconds_of(const Job& job, const std::vector<Range>& turns, std::size_t memory_size,
                  std::uint64_t& seen) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  if (!job.write) {
    const auto start = Clock::now();
    const Descriptor file(job.file, O_RDONLY | O_CLOEXEC);
    const Memory memory(memory_size, true);
    seen += run_threads(job, turns, file.number(), memory.data());
    return since(start);
  }
  // Tensors that someone saves lie in ordinary pages: so does what is written here.
  const Memory memory(memory_size, false);
  {
    const Descriptor file(job.file, O_RDONLY | O_CLOEXEC);
    for (const Range& turn : turns) {
      read_all(file.number(), memory.data() + turn.memory_offset, turn.size, turn.file_offset);
    }
  }
  ::unlink(job.output.c_str());
  double seconds = 0;
  {
    const auto start = Clock::now();
    const Descriptor file(job.output, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC);
    seen += run_threads(job, turns, file.number(), memory.data());
    seconds = since(start);
  }
  ::unlink(job.output.c_str());
  return seconds;
}

Job parse(int argc, char** argv) {
  if (argc < 4) throw std::runtime_error("usage: limit MODE FILE RANGES [--option value ...]");
  Job job;
  const std::string mode = argv[1];
  const std::string kind = mode.substr(0, mode.find('-'));
  const std::string sums = kind == mode ? "" : mode.substr(kind.size() + 1);
  if ((kind != "read" && kind != "write") || (kind != mode && sums != "crc32" && sums != "all")) {
    throw std::runtime_error("unknown mode " + mode);
  }
  job.write = kind == "write";
  job.crc32 = !sums.empty();
  job.sha256 = sums == "all";
  job.file = argv[2];
  job.ranges = argv[3];
  for (int i = 4; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    const std::string value = argv[i + 1];
    if (option == "--threads") {
      job.threads = std::stoi(value);
    } else if (option == "--piece") {
      job.piece = std::stoull(value);
    } else if (option == "--repeat") {
      job.repeat = std::stoi(value);
    } else if (option == "--output") {
      job.output = value;
    } else {
      throw std::runtime_error("unknown option " + option);
    }
  }
  if (job.threads < 1 || job.piece < 1 || job.repeat < 1) {
    throw std::runtime_error("--threads, --piece and --repeat are at least 1");
  }
  if (job.write && job.output.empty()) throw std::runtime_error(mode + " needs --output");
  return job;
}

}  // namespace

int main(int argc, char** argv) try {
  const Job job = parse(argc, argv);
  const std::vector<Range> ranges = read_ranges(job.ranges);
  const std::vector<Range> turns = cut(ranges, job.sha256);
  const std::size_t memory_size = ranges.back().memory_offset + ranges.back().size;
  std::uint64_t bytes = 0;
  for (const Range& range : ranges) bytes += range.size;
  std::uint64_t seen = 0;
  std::printf("{\"mode\": \"%s\", \"threads\": %d, \"piece\": %zu, \"bytes\": %llu, \"seconds\": [",
              argv[1], job.threads, job.piece, static_cast<unsigned long long>(bytes));
  for (int i = 0; i < job.repeat; ++i) {
    std::printf("%s%.6f", i == 0 ? "" : ", ", seconds_of(job, turns, memory_size, seen));
  }
  std::printf("], \"sums\": %llu}\n", static_cast<unsigned long long>(seen));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "limit: %s\n", error.what());
  return 1;
}
