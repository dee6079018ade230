// The contract between SHA-256's state keeping (sha256.cpp) and the code that compresses blocks, of
// which there is one file per kind of processor. Only sha256.cpp and the tests include this.
//
// A variant compresses the blocks of up to `lanes` messages side by side. It knows nothing of
// partial blocks, padding or messages of differing length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/sha256.h"

namespace tensorizer {

inline constexpr std::size_t kSha256BlockSize = 64;
inline constexpr std::size_t kMostSha256Lanes = 4;

// Compresses `count` blocks from blocks[i] into states[i], for every lane i.
using Sha256Kernel = void (*)(std::uint32_t* const states[], const std::byte* const blocks[],
                              std::size_t count) noexcept;

// kernels[n - 1] serves n lanes, so that the last few messages do not pay for idle lanes; a variant
// has as many lanes as kernels, and at most kMostSha256Lanes.
struct Sha256Variant {
  std::span<const Sha256Kernel> kernels;
};

// One message at a time, on any processor.
Sha256Variant sha256_libcrypto() noexcept;

// x86's SHA extensions, four messages at a time; no kernels where the processor has none.
Sha256Variant sha256_shani() noexcept;

// sha256_update() and sha256_finish() by a given variant, for the tests. A message may change
// variants between two calls.
void sha256_update(Sha256Variant variant, std::span<const Sha256Update> updates) noexcept;
void sha256_finish(Sha256Variant variant, std::span<Sha256* const> messages,
                   std::span<Sha256Digest> digests) noexcept;

}  // namespace tensorizer
