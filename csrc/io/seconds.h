// Times that options give as numbers of seconds.
#pragma once

#include <chrono>

namespace tensorizer {

inline std::chrono::steady_clock::duration seconds(double count) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(count));
}

}  // namespace tensorizer
