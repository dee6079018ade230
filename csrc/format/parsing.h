// Helpers that the parsers of all formats share.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "format/catalogue.h"
#include "format/shape.h"

namespace tensorizer {

// Throws Error(InvalidFormat) that names the file.
[[noreturn]] inline void fail(const FileLocation& location, const std::string& what) {
  throw Error(ErrorKind::InvalidFormat, std::string(location.label) + ": " + what);
}

inline std::string at(std::uint64_t offset) { return " at offset " + std::to_string(offset); }

}  // namespace tensorizer
