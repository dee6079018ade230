// SHA-256 of one message on one thread. Thousands of chunks are hashed at once, each by a thread.
#pragma once

#include "cuda/device_code.h"

namespace tensorizer::device {

inline constexpr int kSha256Size = 32;
inline constexpr int kSha256Block = 64;

struct Sha256State {
  std::uint32_t words[8];
};

TENSORIZER_BOTH inline Sha256State sha256_start() {
  return {{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab,
           0x5be0cd19}};
}

// Takes a block, which is 16 big-endian words. Overwrites it.
TENSORIZER_BOTH inline void sha256_compress(Sha256State& state, std::uint32_t (&w)[16]) {
  static constexpr std::uint32_t kConstants[64] = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
      0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
      0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
      0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
      0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
      0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
      0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
      0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
      0xc67178f2};
  std::uint32_t a = state.words[0], b = state.words[1], c = state.words[2], d = state.words[3];
  std::uint32_t e = state.words[4], f = state.words[5], g = state.words[6], h = state.words[7];
  // With all rounds unrolled, the words and the constants are registers and immediate operands.
#ifdef TENSORIZER_ON_DEVICE
#pragma unroll
#endif
  for (int i = 0; i < 64; ++i) {
    if (i >= 16) {
      const std::uint32_t w15 = w[(i - 15) & 15], w2 = w[(i - 2) & 15];
      const std::uint32_t s0 = rotate_right(w15, 7) ^ rotate_right(w15, 18) ^ w15 >> 3;
      const std::uint32_t s1 = rotate_right(w2, 17) ^ rotate_right(w2, 19) ^ w2 >> 10;
      w[i & 15] += s0 + w[(i - 7) & 15] + s1;
    }
    const std::uint32_t s1 = rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25);
    const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kConstants[i] + w[i & 15];
    const std::uint32_t s0 = rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22);
    const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  state.words[0] += a;
  state.words[1] += b;
  state.words[2] += c;
  state.words[3] += d;
  state.words[4] += e;
  state.words[5] += f;
  state.words[6] += g;
  state.words[7] += h;
}

// Writes the digest of a message of `size` bytes. `rest`: those behind its last whole block.
TENSORIZER_BOTH inline void sha256_finish(Sha256State& state, const std::uint8_t* rest,
                                          std::uint64_t size, std::uint8_t* out) {
  std::uint32_t w[16];
  const int left = static_cast<int>(size % kSha256Block);
  for (int i = 0; i < 16; ++i) w[i] = 0;
  for (int i = 0; i <= left; ++i) {
    const std::uint32_t byte = i < left ? rest[i] : 0x80;
    w[i / 4] |= byte << (24 - 8 * (i % 4));
  }
  if (left >= kSha256Block - 8) {  // no room for the size
    sha256_compress(state, w);
    for (int i = 0; i < 16; ++i) w[i] = 0;
  }
  w[14] = static_cast<std::uint32_t>(size >> 29);
  w[15] = static_cast<std::uint32_t>(size << 3);
  sha256_compress(state, w);
  for (int i = 0; i < 8; ++i) store_be32(out + 4 * i, state.words[i]);
}

// Writes the SHA-256 of a message.
TENSORIZER_BOTH inline void sha256(const std::uint8_t* data, std::uint64_t size,
                                   std::uint8_t* out) {
  Sha256State state = sha256_start();
  std::uint64_t at = 0;
  for (; size - at >= kSha256Block; at += kSha256Block) {
    std::uint32_t w[16];
    for (int i = 0; i < 16; ++i) w[i] = load_be32(data + at + 4 * i);
    sha256_compress(state, w);
  }
  sha256_finish(state, data + at, size, out);
}

}  // namespace tensorizer::device
