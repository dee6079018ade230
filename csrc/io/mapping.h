// A private, copy-on-write mapping of a whole file.
//
// Writes to it never reach the file. It reserves no memory (MAP_NORESERVE), so a file larger than
// the machine's memory can be mapped. In-place changes of the file show through it, and touching
// pages that were truncated away kills the process (SIGBUS).
#pragma once

#include "base/bytes.h"

namespace tensorizer {

class Mapping {
 public:
  // Maps bytes 0 to `size` (more than 0) of the descriptor, which may be closed afterwards. Throws
  // Error if the system refuses.
  Mapping(int descriptor, std::uint64_t size, const std::string& path);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  Bytes bytes() const noexcept { return bytes_; }

  // Frees the memory of the whole pages inside `part`, which must not be used afterwards.
  void discard(Bytes part) const noexcept;

 private:
  Bytes bytes_;
};

}  // namespace tensorizer
