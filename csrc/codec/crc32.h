// zlib's CRC32.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"

namespace tensorizer {

// Returns the CRC32 of the bytes that `crc` is the checksum of, followed by `bytes`. Start with 0.
std::uint32_t crc32(std::uint32_t crc, ConstBytes bytes) noexcept;

// Returns the CRC32 of two concatenated runs of bytes, from the CRC32 of each and the size of the
// second. So pieces may be hashed in any order.
std::uint32_t crc32_join(std::uint32_t first, std::uint32_t second, std::uint64_t second_size);

inline constexpr std::size_t kCrc32Size = 4;

// The CRC32 of bytes that arrive in order.
class Crc32 {
 public:
  void update(ConstBytes bytes) noexcept { crc_ = crc32(crc_, bytes); }
  ConstBytes finish() const noexcept { return std::as_bytes(std::span(&crc_, 1)); }

 private:
  std::uint32_t crc_ = 0;
};

// Returns the bytes of a CRC32 as text shows them: the most significant first.
inline std::array<std::byte, 4> crc32_bytes(std::uint32_t crc) noexcept {
  return {static_cast<std::byte>(crc >> 24), static_cast<std::byte>(crc >> 16),
          static_cast<std::byte>(crc >> 8), static_cast<std::byte>(crc)};
}

}  // namespace tensorizer
