#include "io/file_pages.h"

#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>

#include "base/error.h"

namespace tensorizer {

namespace {

constexpr const char* kMaps = "/proc/self/maps";

// How much is replaced at a time, as there is memory for both then.
constexpr std::uintptr_t kDetachedAtOnce = 64 << 20;

// The addresses of whole pages.
struct Range {
  std::uintptr_t begin;
  std::uintptr_t end;
};

Range addresses_of(Bytes bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  return {begin, begin + bytes.size()};
}

// Returns the pages of memory in order, and those side by side as one range.
std::vector<Range> pages_of(const std::vector<Bytes>& memory, std::uintptr_t page) {
  std::vector<Range> all;
  for (const Bytes bytes : memory) {
    const Range range = addresses_of(bytes);
    if (!bytes.empty()) all.push_back({range.begin / page * page, align_up(range.end, page)});
  }
  std::ranges::sort(all, {}, &Range::begin);
  std::vector<Range> joined;
  for (const Range& range : all) {
    if (joined.empty() || range.begin > joined.back().end) {
      joined.push_back(range);
    } else {
      joined.back().end = std::max(joined.back().end, range.end);
    }
  }
  return joined;
}

[[noreturn]] void refuse(int system_errno) {
  const char* const hint =
      system_errno == ENOMEM ? ", or too many mappings (vm.max_map_count)" : "";
  throw Error(system_errno == ENOMEM ? ErrorKind::OutOfMemory : ErrorKind::SystemError,
              std::string("cannot detach a tensor from the file that it is mapped from: ") +
                  std::strerror(system_errno) + hint + ": give it a clone()",
              system_errno);
}

void detach(std::uintptr_t begin, std::size_t size, int protection) {
  void* const place = reinterpret_cast<void*>(begin);
  void* const fresh =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (fresh == MAP_FAILED) refuse(errno);
  std::memcpy(fresh, place, size);
  if (mprotect(fresh, size, protection) == 0 &&
      mremap(fresh, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, place) != MAP_FAILED) {
    return;
  }
  const int failure = errno;
  munmap(fresh, size);
  refuse(failure);
}

}  // namespace

std::vector<FilePages> file_pages() {
  std::vector<FilePages> all;
  std::ifstream maps(kMaps);
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0;
    unsigned long end = 0;
    std::array<char, 5> flags{};
    unsigned int major_number = 0;
    unsigned int minor_number = 0;
    unsigned long inode = 0;
    const bool is_read = std::sscanf(line.c_str(), "%lx-%lx %4c %*x %x:%x %lu", &begin, &end,
                                     flags.data(), &major_number, &minor_number, &inode) == 6;
    // A server of files may give one the inode 0.
    if (!is_read || (inode == 0 && major_number == 0 && minor_number == 0)) continue;
    const int protection = (flags[0] == 'r' ? PROT_READ : 0) | (flags[1] == 'w' ? PROT_WRITE : 0) |
                           (flags[2] == 'x' ? PROT_EXEC : 0);
    all.push_back({{reinterpret_cast<std::byte*>(begin), end - begin},
                   {makedev(major_number, minor_number), inode},
                   flags[3] == 'p',
                   protection});
  }
  if (!maps.eof()) throw system_error(errno, "cannot read", kMaps);
  return all;
}

void detach_from_files(const std::vector<Bytes>& memory) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::vector<Range> wanted = pages_of(memory, page);
  if (wanted.empty()) return;
  // A page may have memory of another job, which writes to it as soon as its own call has returned.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  for (const FilePages& pages : file_pages()) {
    if (!pages.is_private || (pages.protection & PROT_READ) == 0) continue;
    const Range mapped = addresses_of(pages.bytes);
    for (auto next = std::ranges::upper_bound(wanted, mapped.begin, {}, &Range::end);
         next != wanted.end() && next->begin < mapped.end; ++next) {
      const std::uintptr_t begin = std::max(next->begin, mapped.begin);
      const std::uintptr_t end = std::min(next->end, mapped.end);
      // Other tensors lie on the first and the last page too, so these take no longer than they
      // must.
      for (std::uintptr_t at = begin, size = page; at < end; at += size) {
        size = at == begin || at + page == end ? page : std::min(kDetachedAtOnce, end - page - at);
        detach(at, size, pages.protection);
      }
    }
  }
}

}  // namespace tensorizer
