#include "io/mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace tensorizer {

namespace {

Bytes map(void* at, std::uint64_t size, int protection, int flags, int descriptor,
          const std::string& path) {
  void* const start =
      mmap(at, size, protection, MAP_PRIVATE | MAP_NORESERVE | flags, descriptor, 0);
  if (start == MAP_FAILED) throw system_error(errno, "cannot map", path);
  return {static_cast<std::byte*>(start), size};
}

}  // namespace

Mapping::Mapping(int descriptor, std::uint64_t size, const std::string& path)
    : reserved_(map(nullptr, size, PROT_READ | PROT_WRITE, 0, descriptor, path)),
      bytes_(reserved_) {}

Mapping::Mapping(std::uint64_t size, const std::string& path)
    : reserved_(map(nullptr, size + kMappingUnit, PROT_NONE, MAP_ANONYMOUS, -1, path)) {
  const auto begin = reinterpret_cast<std::uintptr_t>(reserved_.data());
  bytes_ = reserved_.subspan((kMappingUnit - begin % kMappingUnit) % kMappingUnit, size);
}

void Mapping::add(int descriptor, std::uint64_t position, std::uint64_t size,
                  const std::string& path) {
  map(bytes_.data() + position, size, PROT_READ | PROT_WRITE, MAP_FIXED, descriptor, path);
}

Mapping::~Mapping() { munmap(reserved_.data(), reserved_.size()); }

void Mapping::discard(Bytes part) const noexcept {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<std::uintptr_t>(part.data());
  const std::uintptr_t first = (start + page - 1) / page * page;
  const std::uintptr_t last = (start + part.size()) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace tensorizer
