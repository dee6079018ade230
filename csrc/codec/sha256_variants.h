// The interface between the state of SHA-256 messages (sha256.cpp) and the code that compresses
// blocks, which has one file per kind of processor. Only sha256.cpp and the tests include this.
//
// A variant compresses the blocks of up to `lanes` messages side by side. It knows nothing of
// partial blocks, padding or messages of different lengths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/sha256.h"

namespace tensorizer {

inline constexpr std::size_t kSha256BlockSize = 64;
inline constexpr std::size_t kMostSha256Lanes = 16;

alignas(64) inline constexpr std::uint32_t kSha256Constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// Compresses `count` blocks from blocks[i] into states[i], for every lane i.
using Sha256Kernel = void (*)(std::uint32_t* const states[], const std::byte* const blocks[],
                              std::size_t count) noexcept;

// kernels[n - 1] compresses n lanes, so that the last few messages do not pay for idle lanes. It is
// null if fewer lanes at a time are faster. A variant has as many lanes as kernels, and at most
// kMostSha256Lanes.
struct Sha256Variant {
  std::span<const Sha256Kernel> kernels;
};

// Hashes one message at a time, on any processor.
Sha256Variant sha256_libcrypto() noexcept;

// Uses x86's SHA extensions, four messages at a time. Has no kernels if the processor lacks them.
Sha256Variant sha256_shani() noexcept;

// Uses AVX-512, sixteen messages at a time. Has no kernels if the processor lacks it.
Sha256Variant sha256_avx512() noexcept;

// Returns the kernels of `few`, and those of `many` for more lanes, with null for a number of lanes
// that several calls of `few` compress faster.
std::vector<Sha256Kernel> sha256_fastest(Sha256Variant few, Sha256Variant many);

// sha256_update() and sha256_finish() with a given variant, for the tests. A message may be passed
// to different variants in successive calls.
void sha256_update(Sha256Variant variant, std::span<const Sha256Update> updates) noexcept;
void sha256_finish(Sha256Variant variant, std::span<Sha256* const> messages,
                   std::span<Sha256Digest> digests) noexcept;

}  // namespace tensorizer
