// Helpers that the parsers of the file header and the index share.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "base/error.h"
#include "format/tensors/index.h"

namespace tensorizer {

// The largest offset and size: torch and the system use signed 64-bit integers.
inline constexpr auto kMaxSigned =
    static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

// Throws Error(InvalidFormat) that names the file.
[[noreturn]] inline void fail(const FileLocation& location, const std::string& what) {
  throw Error(ErrorKind::InvalidFormat, std::string(location.label) + ": " + what);
}

inline std::string at(std::uint64_t offset) { return " at offset " + std::to_string(offset); }

}  // namespace tensorizer
