// What a caller may say about where bytes come from and go to.
#pragma once

#include <cstdint>
#include <limits>

#include "io/option.h"

namespace tensorizer {

struct SourceOptions {
  bool operator==(const SourceOptions&) const = default;

  // Those of the places (place_options(), in io/open.h). A place takes the ones that it declares.
  OptionList given{};
  // The part that will be read, as far as that is known: a first request asks for nothing else.
  std::uint64_t begin = 0;
  std::uint64_t end = std::numeric_limits<std::uint64_t>::max();
  // Whether the bytes may be those of no file, and have gaps, where a place could tell.
  bool any_bytes = false;
};

struct SinkOptions {
  OptionList given{};
  // Wait until the bytes, and the name, are on stable storage.
  bool fsync = false;
  // Of an upload whose size nobody knows beforehand.
  std::uint64_t part_size = 16 << 20;
};

}  // namespace tensorizer
