// zlib's CRC32.
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.h"

namespace tensorizer {

// The CRC32 of what `crc` is the checksum of, followed by `bytes`; start with 0.
std::uint32_t crc32(std::uint32_t crc, ConstBytes bytes) noexcept;

// The CRC32 of two runs of bytes, one behind the other, from the CRC32 of each and the size of the
// second: so pieces may be summed in any order.
std::uint32_t crc32_join(std::uint32_t first, std::uint32_t second, std::uint64_t second_size);

// The bytes of a CRC32 as text has them: the highest first.
inline std::array<std::byte, 4> crc32_bytes(std::uint32_t crc) noexcept {
  return {static_cast<std::byte>(crc >> 24), static_cast<std::byte>(crc >> 16),
          static_cast<std::byte>(crc >> 8), static_cast<std::byte>(crc)};
}

}  // namespace tensorizer
