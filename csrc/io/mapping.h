// A private, copy-on-write mapping of whole files.
//
// Writes to it never reach the files. It reserves no memory (MAP_NORESERVE), so files larger than
// the machine's memory can be mapped. In-place changes of a file show through it, and touching
// pages that were truncated away kills the process (SIGBUS).
#pragma once

#include <cstdint>
#include <string>

#include "base/bytes.h"

namespace tensorizer {

// The size of a huge page: a file that begins on a multiple of it can be mapped with huge pages.
inline constexpr std::uint64_t kMappingUnit = 2 << 20;

class Mapping {
 public:
  // Maps bytes 0 to `size` (more than 0) of the descriptor, which may be closed afterwards. Throws
  // Error if the system refuses.
  Mapping(int descriptor, std::uint64_t size, const std::string& path);
  // Reserves `size` (more than 0) bytes of address space, which begin on a multiple of
  // kMappingUnit. They must not be touched where no file is mapped. `path` is for messages.
  Mapping(std::uint64_t size, const std::string& path);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Maps bytes 0 to `size` of the descriptor, which may be closed afterwards, into reserved address
  // space: from `position` on, which is a multiple of kMappingUnit. Throws Error if the system
  // refuses.
  void add(int descriptor, std::uint64_t position, std::uint64_t size, const std::string& path);

  Bytes bytes() const noexcept { return bytes_; }

  // Frees the memory of the whole pages inside `part`, which must not be used afterwards.
  void discard(Bytes part) const noexcept;

 private:
  Bytes reserved_;
  Bytes bytes_;  // a part of it
};

}  // namespace tensorizer
