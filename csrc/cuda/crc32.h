// zlib's CRC32 of pieces that threads take in any order.
//
// Without the ones that a CRC32 begins and ends with, the checksum of a message is linear: the one
// of two concatenated pieces is the first one times x^(8 * size of the second), plus the second
// one, over GF(2) and modulo the polynomial. So each thread moves the checksum of its piece to
// where the piece is in the message, and the results are added up with XOR. Pieces are counted from
// the end of the message, so that all but the first one have the same size.
#pragma once

#include "cuda/device_code.h"

namespace tensorizer::device {

// Bit 31 is the coefficient of x^0.
inline constexpr std::uint32_t kCrc32Polynomial = 0xedb88320;
inline constexpr std::uint32_t kCrc32One = 0x80000000;

// Lookup tables for four bytes at a time: of[i][byte] is the checksum of a byte and 3 - i zero
// bytes behind it.
struct Crc32Tables {
  std::uint32_t of[4][256];
};

constexpr Crc32Tables crc32_tables() {
  Crc32Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kCrc32Polynomial : 0);
    tables.of[3][byte] = crc;
  }
  for (int i = 2; i >= 0; --i) {
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t next = tables.of[i + 1][byte];
      tables.of[i][byte] = next >> 8 ^ tables.of[3][next & 0xff];
    }
  }
  return tables;
}

TENSORIZER_BOTH inline std::uint32_t crc32_times(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (int bit = 0; bit < 32; ++bit) {
    product ^= b & (0u - (a >> 31));
    a <<= 1;
    b = b >> 1 ^ (kCrc32Polynomial & (0u - (b & 1)));
  }
  return product;
}

// Returns x^(8 * bytes).
TENSORIZER_BOTH inline std::uint32_t crc32_power(std::uint64_t bytes) {
  std::uint32_t power = kCrc32One;
  std::uint32_t square = kCrc32One >> 8;
  for (; bytes != 0; bytes >>= 1) {
    if (bytes & 1) power = crc32_times(power, square);
    square = crc32_times(square, square);
  }
  return power;
}

// Returns the checksum of a piece, which starts from 0.
TENSORIZER_BOTH inline std::uint32_t crc32_piece(const Crc32Tables& tables,
                                                 const std::uint8_t* data, std::uint64_t size) {
  std::uint32_t crc = 0;
  std::uint64_t at = 0;
  for (; size - at >= 4; at += 4) {
    crc ^= load_le32(data + at);
    crc = tables.of[0][crc & 0xff] ^ tables.of[1][crc >> 8 & 0xff] ^
          tables.of[2][crc >> 16 & 0xff] ^ tables.of[3][crc >> 24];
  }
  for (; at < size; ++at) crc = crc >> 8 ^ tables.of[3][(crc ^ data[at]) & 0xff];
  return crc;
}

// Factors: multiplying a checksum by of[i] appends 2^i pieces of zero bytes to the message.
struct Crc32Powers {
  std::uint32_t of[40];
};

TENSORIZER_BOTH inline Crc32Powers crc32_powers(std::uint64_t piece_size) {
  Crc32Powers powers;
  powers.of[0] = crc32_power(piece_size);
  for (int i = 1; i < 40; ++i) powers.of[i] = crc32_times(powers.of[i - 1], powers.of[i - 1]);
  return powers;
}

// Returns what piece `number` from the end adds to the checksum of a message. Fewer than 2^40
// pieces may follow it.
TENSORIZER_BOTH inline std::uint32_t crc32_of_piece(const Crc32Tables& tables,
                                                    const Crc32Powers& powers,
                                                    const std::uint8_t* data, std::uint64_t size,
                                                    std::uint64_t piece_size,
                                                    std::uint64_t number) {
  const std::uint64_t end = size - number * piece_size;
  const std::uint64_t length = end < piece_size ? end : piece_size;
  std::uint32_t crc = crc32_piece(tables, data + (end - length), length);
  for (int i = 0; number != 0; ++i, number >>= 1) {
    if (number & 1) crc = crc32_times(crc, powers.of[i]);
  }
  return crc;
}

// Returns the CRC32 of a message from the sum of what its pieces add.
TENSORIZER_BOTH inline std::uint32_t crc32_of(std::uint32_t sum, std::uint64_t size) {
  return sum ^ crc32_times(0xffffffff, crc32_power(size)) ^ 0xffffffff;
}

}  // namespace tensorizer::device
