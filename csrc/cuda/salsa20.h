// XSalsa20, a block of 64 bytes at a time, in any order.
#pragma once

#include "cuda/device_code.h"

namespace tensorizer::device {

inline constexpr int kSalsaBlock = 64;
// The first bytes of the stream are the key of Poly1305, and the message is encrypted with what
// follows.
inline constexpr int kSalsaSkipped = 32;

struct SalsaKey {
  std::uint32_t words[8];
};

TENSORIZER_BOTH inline void salsa_quarter(std::uint32_t& a, std::uint32_t& b, std::uint32_t& c,
                                          std::uint32_t& d) {
  b ^= rotate_left(a + d, 7);
  c ^= rotate_left(b + a, 9);
  d ^= rotate_left(c + b, 13);
  a ^= rotate_left(d + c, 18);
}

TENSORIZER_BOTH inline void salsa_rounds(std::uint32_t (&x)[16]) {
  for (int i = 0; i < 10; ++i) {
    salsa_quarter(x[0], x[4], x[8], x[12]);
    salsa_quarter(x[5], x[9], x[13], x[1]);
    salsa_quarter(x[10], x[14], x[2], x[6]);
    salsa_quarter(x[15], x[3], x[7], x[11]);
    salsa_quarter(x[0], x[1], x[2], x[3]);
    salsa_quarter(x[5], x[6], x[7], x[4]);
    salsa_quarter(x[10], x[11], x[8], x[9]);
    salsa_quarter(x[15], x[12], x[13], x[14]);
  }
}

// Sets the input of the rounds: constants, key, and 16 bytes as words.
TENSORIZER_BOTH inline void salsa_input(std::uint32_t (&x)[16], const SalsaKey& key,
                                        std::uint32_t in0, std::uint32_t in1, std::uint32_t in2,
                                        std::uint32_t in3) {
  x[0] = 0x61707865;
  x[5] = 0x3320646e;
  x[10] = 0x79622d32;
  x[15] = 0x6b206574;
  for (int i = 0; i < 4; ++i) {
    x[1 + i] = key.words[i];
    x[11 + i] = key.words[4 + i];
  }
  x[6] = in0;
  x[7] = in1;
  x[8] = in2;
  x[9] = in3;
}

// Returns the key of Salsa20 for a key of 32 bytes and the first 16 bytes of the nonce.
TENSORIZER_BOTH inline SalsaKey xsalsa_key(const std::uint8_t* key, const std::uint8_t* nonce) {
  SalsaKey given;
  for (int i = 0; i < 8; ++i) given.words[i] = load_le32(key + 4 * i);
  std::uint32_t x[16];
  salsa_input(x, given, load_le32(nonce), load_le32(nonce + 4), load_le32(nonce + 8),
              load_le32(nonce + 12));
  salsa_rounds(x);
  return {{x[0], x[5], x[10], x[15], x[6], x[7], x[8], x[9]}};
}

// Writes block `number` of the stream as words. `nonce`: the last 8 bytes of the nonce.
TENSORIZER_BOTH inline void xsalsa_block(const SalsaKey& key, const std::uint8_t* nonce,
                                         std::uint64_t number, std::uint32_t (&out)[16]) {
  std::uint32_t start[16];
  salsa_input(start, key, load_le32(nonce), load_le32(nonce + 4),
              static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32));
  for (int i = 0; i < 16; ++i) out[i] = start[i];
  salsa_rounds(out);
  for (int i = 0; i < 16; ++i) out[i] += start[i];
}

// Encrypts or decrypts the part of a message of `size` bytes for which block `number` of the stream
// is: bytes kSalsaSkipped before the end of the block before, but for block 0. `out` may be `data`.
TENSORIZER_BOTH inline void xsalsa_part(const SalsaKey& key, const std::uint8_t* nonce,
                                        std::uint64_t number, const std::uint8_t* data,
                                        std::uint8_t* out, std::uint64_t size) {
  std::uint32_t block[16];
  xsalsa_block(key, nonce, number, block);
  const int first = number == 0 ? kSalsaSkipped : 0;
  // Unrolled, so that the block stays in registers.
#ifdef TENSORIZER_ON_DEVICE
#pragma unroll
#endif
  for (int i = 0; i < kSalsaBlock; i += 4) {
    if (i < first) continue;
    const std::uint64_t place = number * kSalsaBlock + i - kSalsaSkipped;
    if (place + 4 <= size) {
      store_le32(out + place, load_le32(data + place) ^ block[i / 4]);
      continue;
    }
    for (std::uint64_t at = place; at < size; ++at) {
      out[at] = data[at] ^ static_cast<std::uint8_t>(block[i / 4] >> (8 * (at - place)));
    }
  }
}

// Returns how many blocks of the stream a message takes.
TENSORIZER_BOTH inline std::uint64_t xsalsa_blocks(std::uint64_t size) {
  return (size + kSalsaSkipped + kSalsaBlock - 1) / kSalsaBlock;
}

}  // namespace tensorizer::device
