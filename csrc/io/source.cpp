#include "io/source.h"

#include "base/error.h"

namespace tensorizer {

std::uint64_t total_size(std::span<const Bytes> pieces) noexcept {
  std::uint64_t total = 0;
  for (const Bytes piece : pieces) total += piece.size();
  return total;
}

void throw_source_ended(const std::string& label, std::uint64_t end, std::uint64_t missing) {
  throw Error(ErrorKind::InvalidFormat, label + " ends at byte " + std::to_string(end) +
                                            ", expected " + std::to_string(missing) + " more");
}

}  // namespace tensorizer
