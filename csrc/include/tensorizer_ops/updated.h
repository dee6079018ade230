// The result of an update.
#pragma once

#include <cstdint>

namespace tensorizer {

// How many bytes an update has read from the newer file, and from the local one.
struct Updated {
  std::uint64_t fetched;
  std::uint64_t kept;

  friend bool operator==(const Updated&, const Updated&) = default;
};

}  // namespace tensorizer
