// Poly1305 of parts that threads take in any order.
//
// The MAC is a polynomial in r modulo 2^130 - 5, whose coefficients are the blocks of the message.
// Each thread evaluates it for a run of blocks and multiplies that by the power of r that belongs
// to its place, and the results are added up. Runs are counted from the end of the message, so that
// all but the first one have the same number of blocks.
#pragma once

#include "cuda/device_code.h"

namespace tensorizer::device {

inline constexpr int kPolyBlock = 16;
inline constexpr int kPolyMac = 16;

// A number modulo 2^130 - 5, in five digits of 26 bits, each of which may be slightly larger.
struct PolyNumber {
  std::uint32_t digits[5];
};

inline constexpr std::uint32_t kPolyDigit = (1u << 26) - 1;

// Returns the number of 16 bytes, plus `high` times 2^128.
TENSORIZER_BOTH inline PolyNumber poly_number(const std::uint8_t* bytes, std::uint32_t high) {
  const std::uint64_t w0 = load_le32(bytes), w1 = load_le32(bytes + 4);
  const std::uint64_t w2 = load_le32(bytes + 8), w3 = load_le32(bytes + 12);
  return {{static_cast<std::uint32_t>(w0 & kPolyDigit),
           static_cast<std::uint32_t>((w0 >> 26 | w1 << 6) & kPolyDigit),
           static_cast<std::uint32_t>((w1 >> 20 | w2 << 12) & kPolyDigit),
           static_cast<std::uint32_t>((w2 >> 14 | w3 << 18) & kPolyDigit),
           static_cast<std::uint32_t>(w3 >> 8) | high << 24}};
}

// Returns r, of the first half of a key.
TENSORIZER_BOTH inline PolyNumber poly_r(const std::uint8_t* key) {
  std::uint8_t clamped[16];
  for (int i = 0; i < 16; ++i) {
    clamped[i] = key[i];
    if (i % 4 == 3) clamped[i] &= 15;
    if (i % 4 == 0 && i > 0) clamped[i] &= 252;
  }
  return poly_number(clamped, 0);
}

TENSORIZER_BOTH inline PolyNumber poly_sum(const PolyNumber& a, const PolyNumber& b) {
  PolyNumber sum;
  std::uint32_t carry = 0;
  for (int i = 0; i < 5; ++i) {
    const std::uint32_t digit = a.digits[i] + b.digits[i] + carry;
    sum.digits[i] = digit & kPolyDigit;
    carry = digit >> 26;
  }
  sum.digits[0] += 5 * carry;  // 2^130 is 5
  return sum;
}

TENSORIZER_BOTH inline PolyNumber poly_product(const PolyNumber& a, const PolyNumber& b) {
  std::uint64_t sums[5];
  for (int i = 0; i < 5; ++i) {
    sums[i] = 0;
    for (int j = 0; j < 5; ++j) {
      const std::uint64_t digit = b.digits[(i - j + 5) % 5];
      sums[i] += a.digits[j] * (j > i ? 5 * digit : digit);
    }
  }
  PolyNumber product;
  std::uint64_t carry = 0;
  for (int i = 0; i < 5; ++i) {
    sums[i] += carry;
    product.digits[i] = static_cast<std::uint32_t>(sums[i]) & kPolyDigit;
    carry = sums[i] >> 26;
  }
  carry = product.digits[0] + 5 * carry;
  product.digits[0] = static_cast<std::uint32_t>(carry) & kPolyDigit;
  product.digits[1] += static_cast<std::uint32_t>(carry >> 26);
  return product;
}

TENSORIZER_BOTH inline PolyNumber poly_power(PolyNumber r, std::uint64_t exponent) {
  PolyNumber power = {{1, 0, 0, 0, 0}};
  for (; exponent != 0; exponent >>= 1) {
    if (exponent & 1) power = poly_product(power, r);
    r = poly_product(r, r);
  }
  return power;
}

// Returns the sum for a run of blocks: the last of them times r, the one before times r^2, and so
// on. Only the last block of a message may be short.
TENSORIZER_BOTH inline PolyNumber poly_run(const PolyNumber& r, const std::uint8_t* data,
                                           std::uint64_t size) {
  PolyNumber sum = {{0, 0, 0, 0, 0}};
  std::uint64_t at = 0;
  for (; size - at >= kPolyBlock; at += kPolyBlock) {
    sum = poly_product(poly_sum(sum, poly_number(data + at, 1)), r);
  }
  if (at < size) {
    std::uint8_t last[kPolyBlock];
    const int left = static_cast<int>(size - at);
    for (int i = 0; i < kPolyBlock; ++i) last[i] = i < left ? data[at + i] : i == left ? 1 : 0;
    sum = poly_product(poly_sum(sum, poly_number(last, 0)), r);
  }
  return sum;
}

// Returns how many blocks a run of bytes has.
TENSORIZER_BOTH inline std::uint64_t poly_blocks(std::uint64_t size) {
  return (size + kPolyBlock - 1) / kPolyBlock;
}

// Powers of r: multiplying the sum of a run by of[i] makes room for 2^i more runs behind it.
struct PolyPowers {
  PolyNumber of[32];
};

TENSORIZER_BOTH inline PolyPowers poly_powers(const PolyNumber& r, std::uint64_t run_blocks) {
  PolyPowers powers;
  powers.of[0] = poly_power(r, run_blocks);
  for (int i = 1; i < 32; ++i) powers.of[i] = poly_product(powers.of[i - 1], powers.of[i - 1]);
  return powers;
}

// Returns what run `number` from the end adds to the sum of a message. Fewer than 2^32 runs may
// follow it.
TENSORIZER_BOTH inline PolyNumber poly_of_run(const PolyNumber& r, const PolyPowers& powers,
                                              const std::uint8_t* data, std::uint64_t size,
                                              std::uint64_t run_blocks, std::uint64_t number) {
  const std::uint64_t end = poly_blocks(size) - number * run_blocks;
  const std::uint64_t begin = end < run_blocks ? 0 : end - run_blocks;
  const std::uint64_t at = begin * kPolyBlock;
  const std::uint64_t stop = end * kPolyBlock < size ? end * kPolyBlock : size;
  PolyNumber sum = poly_run(r, data + at, stop - at);
  for (int i = 0; number != 0; ++i, number >>= 1) {
    if (number & 1) sum = poly_product(sum, powers.of[i]);
  }
  return sum;
}

// Returns the number of digits that are sums of many.
TENSORIZER_BOTH inline PolyNumber poly_of_sums(const std::uint64_t (&sums)[5]) {
  PolyNumber number;
  std::uint64_t carry = 0;
  for (int i = 0; i < 5; ++i) {
    carry += sums[i];
    number.digits[i] = static_cast<std::uint32_t>(carry) & kPolyDigit;
    carry >>= 26;
  }
  carry = number.digits[0] + 5 * carry;
  number.digits[0] = static_cast<std::uint32_t>(carry) & kPolyDigit;
  number.digits[1] += static_cast<std::uint32_t>(carry >> 26);
  return number;
}

// Writes the MAC. `key`: all 32 bytes of the key.
TENSORIZER_BOTH inline void poly_finish(PolyNumber sum, const std::uint8_t* key,
                                        std::uint8_t* mac) {
  // Twice, because the first carry out of the last digit may make the first one too large again.
  for (int round = 0; round < 2; ++round) {
    std::uint32_t carry = 0;
    for (int i = 0; i < 5; ++i) {
      sum.digits[i] += carry;
      carry = sum.digits[i] >> 26;
      sum.digits[i] &= kPolyDigit;
    }
    sum.digits[0] += 5 * carry;
  }
  // Subtract 2^130 - 5 if that leaves a number, without a branch on a secret.
  PolyNumber less;
  std::uint32_t carry = 5;
  for (int i = 0; i < 5; ++i) {
    less.digits[i] = sum.digits[i] + carry;
    carry = less.digits[i] >> 26;
    less.digits[i] &= kPolyDigit;
  }
  const std::uint32_t take = 0u - carry;
  for (int i = 0; i < 5; ++i) {
    sum.digits[i] = (less.digits[i] & take) | (sum.digits[i] & ~take);
  }
  const std::uint32_t words[4] = {
      sum.digits[0] | sum.digits[1] << 26, sum.digits[1] >> 6 | sum.digits[2] << 20,
      sum.digits[2] >> 12 | sum.digits[3] << 14, sum.digits[3] >> 18 | sum.digits[4] << 8};
  std::uint64_t total = 0;
  for (int i = 0; i < 4; ++i) {
    total += std::uint64_t{words[i]} + load_le32(key + 16 + 4 * i);
    store_le32(mac + 4 * i, static_cast<std::uint32_t>(total));
    total >>= 32;
  }
}

}  // namespace tensorizer::device
