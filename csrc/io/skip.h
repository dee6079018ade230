// Skips forward in a sequential source.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"

namespace tensorizer {

// Reads and drops the bytes from `position`, where the source is now, to `offset`. Returns false if
// the source ends before `offset`. `read(out)` fills `out` and returns how many bytes it filled:
// fewer than asked for only at the end. Throws Error(InvalidArgument) if `offset` is before
// `position`.
template <typename Read>
bool skip_to(std::uint64_t offset, std::uint64_t position, const std::string& label, Read read) {
  constexpr std::uint64_t kLargestSkip = 256 << 10;
  if (offset < position) {
    throw Error(
        ErrorKind::InvalidArgument,
        label + " can be read only once: byte " + std::to_string(offset) +
            " is needed after the bytes up to " + std::to_string(position) +
            " have passed. Load all tensors that are needed in one call, or in the order of "
            "the file and each once");
  }
  std::vector<std::byte> scratch(std::min(offset - position, kLargestSkip));
  while (position < offset) {
    const Bytes out(scratch.data(), std::min<std::uint64_t>(offset - position, scratch.size()));
    if (read(out) < out.size()) return false;
    position += out.size();
  }
  return true;
}

}  // namespace tensorizer
