// Code that is compiled for the host and for a device, with the same results.
//
// The headers of this folder use nothing but this, so that nvcc, hipcc and the compiler of the host
// take them. The C++ tests run them on the CPU.
#pragma once

#include <cstdint>

#if defined(__CUDACC__) || defined(__HIPCC__)
#define TENSORIZER_BOTH __host__ __device__
#else
#define TENSORIZER_BOTH
#endif
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define TENSORIZER_ON_DEVICE
#endif

namespace tensorizer::device {

// Whether an address is that of a word, which a device loads at once; compilers of the host know
// how to load one from any address.
TENSORIZER_BOTH inline bool is_word([[maybe_unused]] const std::uint8_t* p) {
#ifdef TENSORIZER_ON_DEVICE
  return reinterpret_cast<std::uintptr_t>(p) % 4 == 0;
#else
  return false;
#endif
}

// Load and store little-endian and big-endian numbers at any address. Devices are little-endian.
TENSORIZER_BOTH inline std::uint32_t load_le32(const std::uint8_t* p) {
  if (is_word(p)) return *reinterpret_cast<const std::uint32_t*>(p);
  return p[0] | std::uint32_t{p[1]} << 8 | std::uint32_t{p[2]} << 16 | std::uint32_t{p[3]} << 24;
}
TENSORIZER_BOTH inline std::uint32_t load_be32(const std::uint8_t* p) {
  const std::uint32_t x = load_le32(p);
  return x << 24 | (x & 0xff00) << 8 | (x >> 8 & 0xff00) | x >> 24;
}
TENSORIZER_BOTH inline void store_le32(std::uint8_t* p, std::uint32_t number) {
  if (is_word(p)) {
    *reinterpret_cast<std::uint32_t*>(p) = number;
    return;
  }
  for (int i = 0; i < 4; ++i) p[i] = static_cast<std::uint8_t>(number >> (8 * i));
}
TENSORIZER_BOTH inline void store_be32(std::uint8_t* p, std::uint32_t number) {
  for (int i = 0; i < 4; ++i) p[i] = static_cast<std::uint8_t>(number >> (24 - 8 * i));
}

TENSORIZER_BOTH inline std::uint32_t rotate_left(std::uint32_t x, int n) {
  return x << n | x >> (32 - n);
}
TENSORIZER_BOTH inline std::uint32_t rotate_right(std::uint32_t x, int n) {
  return x >> n | x << (32 - n);
}

}  // namespace tensorizer::device
