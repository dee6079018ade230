// A private, copy-on-write mapping of a whole file.
//
// What is written to it never reaches the file. It holds no memory back (MAP_NORESERVE), so a file
// larger than the machine maps. Someone who changes the file in place is seen through it, and pages
// that a truncation took away kill the process that touches them (SIGBUS).
#pragma once

#include "base/bytes.h"

namespace tensorizer {

class Mapping {
 public:
  // Maps bytes 0 to `size` (more than 0) of the descriptor, which may be closed afterwards.
  Mapping(int descriptor, std::uint64_t size, const std::string& path);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  Bytes bytes() const noexcept { return bytes_; }

  // Gives back the memory of the whole pages inside `part`, which nobody may use again.
  void discard(Bytes part) const noexcept;

 private:
  Bytes bytes_;
};

}  // namespace tensorizer
