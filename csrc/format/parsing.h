// Helpers that the parsers of all formats share.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>

#include "base/error.h"
#include "format/catalogue.h"

namespace tensorizer {

// The largest offset and size: torch and the system use signed 64-bit integers.
inline constexpr auto kMaxSigned =
    static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

// Throws Error(InvalidFormat) that names the file.
[[noreturn]] inline void fail(const FileLocation& location, const std::string& what) {
  throw Error(ErrorKind::InvalidFormat, std::string(location.label) + ": " + what);
}

inline std::string at(std::uint64_t offset) { return " at offset " + std::to_string(offset); }

// Returns how many bytes the elements of a tensor take; null if the product of the dimensions that
// are not 0, of which strides are made, is more than kMaxSigned bytes.
inline std::optional<std::uint64_t> size_of(std::span<const std::int64_t> shape,
                                            std::uint32_t element_size) {
  std::uint64_t product = element_size;
  bool empty = false;
  for (const std::int64_t dimension : shape) {
    if (dimension == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(product, static_cast<std::uint64_t>(dimension), &product) ||
               product > kMaxSigned) {
      return std::nullopt;
    }
  }
  return empty ? 0 : product;
}

}  // namespace tensorizer
