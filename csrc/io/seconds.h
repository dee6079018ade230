// Times that options give as numbers of seconds.
#pragma once

#include <chrono>

#include "base/world.h"

namespace tensorizer {

inline Clock::duration seconds(double count) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(count));
}

}  // namespace tensorizer
