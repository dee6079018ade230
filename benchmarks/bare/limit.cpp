// The limit: the bare work of a load or a save and nothing else.
//
//   limit MODE FILE RANGES OUTPUT THREADS PIECE REPETITIONS
//
//   read         pread of every range into fresh memory with huge pages
//   read-crc32   also a CRC32 of every piece while it is in cache
//   read-all     also a SHA-256 of every range by libcrypto
//   write        pwrite of the same number of bytes, from memory without huge pages, to a new file
//                OUTPUT, whose blocks are allocated first, and which is never synced
//   write-crc32, write-all    also these checksums, computed before the piece is written
//   read-lanes        pread as above, and then a SHA-256 of every chunk of 1 MiB, as many side by
//                     side as this library's SHA-256 has lanes
//   write-lanes       these SHA-256, and then pwrite
//
// RANGES has the format of read_ranges() in bare.h.
//
// The clock covers what no loader can avoid: allocating memory (for a read), starting threads, the
// work, and joining them. Memory and file are new in every repetition. Prints the
// seconds of each.
#include <libdeflate.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "bare.h"
#include "codec/sha256.h"

namespace {

using bare::Descriptor;
using bare::Memory;
using bare::Range;

// The bytes that a thread takes at a time when ranges may be split: several huge pages, so that two
// threads seldom wait for the same page fault, but few enough that all threads end together.
constexpr std::size_t kTurn = std::size_t{8} << 20;

// The chunks that are hashed side by side.
constexpr std::size_t kHashedChunk = std::size_t{1} << 20;

struct Job {
  bool write = false;
  bool crc32 = false;
  bool sha256 = false;
  bool lanes = false;
  std::string file;
  std::string ranges;
  std::string output;
  int threads = 2;
  std::size_t piece = std::size_t{1} << 20;
  int repetitions = 1;
};

void write_all(int descriptor, const unsigned char* data, std::size_t size, std::size_t offset) {
  while (size > 0) {
    const ssize_t count = ::pwrite(descriptor, data, size, static_cast<off_t>(offset));
    if (count < 0) bare::fail("pwrite");
    data += count;
    size -= static_cast<std::size_t>(count);
    offset += static_cast<std::size_t>(count);
  }
}

using Sha256 = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

// Returns a number that depends on the SHA-256 of every chunk.
std::uint64_t hash_chunks(const unsigned char* bytes, std::size_t size) {
  const std::span<const std::byte> all = std::as_bytes(std::span(bytes, size));
  std::vector<tensorizer::Sha256> hashes((size + kHashedChunk - 1) / kHashedChunk);
  std::vector<tensorizer::Sha256Update> updates;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const std::size_t at = i * kHashedChunk;
    updates.push_back({&hashes[i], all.subspan(at, std::min(kHashedChunk, size - at))});
  }
  tensorizer::sha256_update(updates);
  std::uint64_t seen = 0;
  for (tensorizer::Sha256& hash : hashes) seen += static_cast<std::uint64_t>(hash.finish()[0]);
  return seen;
}

// The work of one thread. Returns a number that depends on every checksum, so that the compiler
// cannot remove any of them.
std::uint64_t work(const Job& job, const std::vector<Range>& turns, std::atomic<std::size_t>& next,
                   int descriptor, unsigned char* memory) {
  std::uint64_t seen = 0;
  const Sha256 sha256(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  for (std::size_t i = next++; i < turns.size(); i = next++) {
    const Range& turn = turns[i];
    if (job.lanes && job.write) seen += hash_chunks(memory + turn.memory_offset, turn.size);
    std::uint32_t crc = 0;
    if (job.sha256) EVP_DigestInit_ex(sha256.get(), EVP_sha256(), nullptr);
    for (std::size_t done = 0; done < turn.size; done += job.piece) {
      const std::size_t size = std::min(job.piece, turn.size - done);
      unsigned char* piece = memory + turn.memory_offset + done;
      if (!job.write) bare::read_all(descriptor, piece, size, turn.file_offset + done);
      if (job.crc32) crc = libdeflate_crc32(crc, piece, size);
      if (job.sha256) EVP_DigestUpdate(sha256.get(), piece, size);
      if (job.write) write_all(descriptor, piece, size, turn.file_offset + done);
    }
    seen += crc;
    if (job.lanes && !job.write) seen += hash_chunks(memory + turn.memory_offset, turn.size);
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
  bare::in_threads(job.threads, [&] { seen += work(job, turns, next, descriptor, memory); });
  return seen;
}

// Divides the work among threads. Ranges are not split if the SHA-256 of a range must be computed
// in order; the largest go first then, so that all threads end at about the same time.
std::vector<Range> turns_of(const Job& job, std::vector<Range> ranges) {
  const std::size_t lanes = static_cast<std::size_t>(tensorizer::sha256_lanes());
  if (!job.sha256) return bare::cut(ranges, job.lanes ? lanes * kHashedChunk : kTurn);
  std::stable_sort(ranges.begin(), ranges.end(),
                   [](const Range& a, const Range& b) { return a.size > b.size; });
  return ranges;
}

double seconds_of(const Job& job, const std::vector<Range>& turns, std::size_t memory_size,
                  std::uint64_t& seen) {
  if (!job.write) {
    const bare::Clock clock;
    const Descriptor file(job.file, O_RDONLY | O_CLOEXEC);
    const Memory memory(memory_size, true);
    seen += run_threads(job, turns, file.number(), memory.data());
    return clock.seconds();
  }
  // No huge pages, as usual for tensors that are saved.
  const Memory memory(memory_size, false);
  {
    const Descriptor file(job.file, O_RDONLY | O_CLOEXEC);
    for (const Range& turn : turns) {
      bare::read_all(file.number(), memory.data() + turn.memory_offset, turn.size,
                     turn.file_offset);
    }
  }
  ::unlink(job.output.c_str());
  double seconds = 0;
  {
    const bare::Clock clock;
    const Descriptor file(job.output, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC);
    // ext4 writes faster into allocated blocks. Where it is not possible, it is not needed either.
    std::uint64_t end = 0;
    for (const Range& turn : turns) end = std::max(end, turn.file_offset + turn.size);
    static_cast<void>(::fallocate(file.number(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(end)));
    seen += run_threads(job, turns, file.number(), memory.data());
    seconds = clock.seconds();
  }
  ::unlink(job.output.c_str());
  return seconds;
}

Job parse(const std::vector<std::string>& given) {
  if (given.size() != 8) {
    throw std::runtime_error("usage: limit MODE FILE RANGES OUTPUT THREADS PIECE REPETITIONS");
  }
  const std::string& mode = given[1];
  Job job;
  job.write = mode.starts_with("write");
  job.sha256 = mode.ends_with("-all");
  job.crc32 = job.sha256 || mode.ends_with("-crc32");
  job.lanes = mode.ends_with("-lanes");
  job.file = given[2];
  job.ranges = given[3];
  job.output = given[4];
  job.threads = std::stoi(given[5]);
  job.piece = std::stoull(given[6]);
  job.repetitions = std::stoi(given[7]);
  return job;
}

}  // namespace

int main(int argc, char** argv) {
  const Job job = parse({argv, argv + argc});
  const std::vector<Range> ranges = bare::read_ranges(job.ranges);
  const std::vector<Range> turns = turns_of(job, ranges);
  std::uint64_t seen = 0;
  for (int i = 0; i < job.repetitions; ++i) {
    std::printf("%.6f\n", seconds_of(job, turns, bare::memory_of(ranges), seen));
  }
  std::fprintf(stderr, "sums: %llu\n", static_cast<unsigned long long>(seen));
}
