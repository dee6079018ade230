#include "codec/crc32.h"

#include <libdeflate.h>
#include <zlib.h>

#include <limits>

namespace tensorizer {

std::uint32_t crc32(std::uint32_t crc, ConstBytes bytes) noexcept {
  // libdeflate takes a null pointer as a request for the initial value, whatever `crc` is.
  if (bytes.empty()) return crc;
  return libdeflate_crc32(crc, bytes.data(), bytes.size());
}

std::uint32_t crc32_join(std::uint32_t first, std::uint32_t second, std::uint64_t second_size) {
  // zlib takes a signed size. Joining with a second CRC32 of 0 only shifts `first`, which may be
  // done in steps.
  constexpr auto kStep = static_cast<std::uint64_t>(std::numeric_limits<z_off_t>::max());
  while (second_size > kStep) {
    first = static_cast<std::uint32_t>(crc32_combine(first, 0, static_cast<z_off_t>(kStep)));
    second_size -= kStep;
  }
  return static_cast<std::uint32_t>(
      crc32_combine(first, second, static_cast<z_off_t>(second_size)));
}

}  // namespace tensorizer
