#include "io/mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace tensorizer {

Mapping::Mapping(int descriptor, std::uint64_t size, const std::string& path) {
  void* const start =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, descriptor, 0);
  if (start == MAP_FAILED) throw system_error(errno, "cannot map", path);
  bytes_ = {static_cast<std::byte*>(start), size};
}

Mapping::~Mapping() { munmap(bytes_.data(), bytes_.size()); }

void Mapping::discard(Bytes part) const noexcept {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<std::uintptr_t>(part.data());
  const std::uintptr_t first = (start + page - 1) / page * page;
  const std::uintptr_t last = (start + part.size()) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace tensorizer
