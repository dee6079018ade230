#include "engine/read_arriving.h"

#include <algorithm>

namespace tensorizer {

namespace {

// Memory for a length that the file claims is allocated in steps of this size, even if a server
// says that the file is that long.
constexpr std::size_t kLargestStep = 16 << 20;

}  // namespace

bool read_on(Source& source, std::uint64_t offset, std::vector<std::byte>& bytes,
             std::uint64_t size, Cancel& cancel) {
  while (bytes.size() < size) {
    const std::size_t have = bytes.size();
    const std::uint64_t step = std::min<std::uint64_t>(size - have, kLargestStep);
    bytes.resize(have + step);
    const std::size_t got = source.read_up_to(offset + have, Bytes(bytes).subspan(have), cancel);
    bytes.resize(have + got);
    if (got < step) return false;
  }
  return true;
}

void read_arriving(Source& source, std::uint64_t offset, std::uint64_t size,
                   std::vector<std::byte>& bytes, Cancel& cancel) {
  bytes.clear();
  if (source.identity()) bytes.reserve(size);
  if (read_on(source, offset, bytes, size, cancel)) return;
  throw_source_ended(source.label(), offset + bytes.size(), size - bytes.size());
}

}  // namespace tensorizer
