// zlib's CRC32.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace tensorizer {

// The CRC32 of what `crc` is the checksum of, followed by `bytes`; start with 0.
std::uint32_t crc32(std::uint32_t crc, ConstBytes bytes) noexcept;

// The CRC32 of two runs of bytes, one behind the other, from the CRC32 of each and the size of the
// second: so pieces may be summed in any order.
std::uint32_t crc32_join(std::uint32_t first, std::uint32_t second, std::uint64_t second_size);

}  // namespace tensorizer
