#include "codec/sha256_variants.h"

#if defined(__x86_64__)

// GCC 12 warns about the intentionally undefined values in its own header.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

// Enabled per function, as for the SHA extensions.
#define TENSORIZER_AVX512 __attribute__((target("avx512f,avx512bw")))
#define TENSORIZER_AVX512_INLINE __attribute__((target("avx512f,avx512bw"), always_inline)) inline

namespace tensorizer {
namespace {

constexpr std::size_t kLanes = 16;
constexpr std::size_t kAhead = 1024;

// One word of each message.
using Words = __m512i;

TENSORIZER_AVX512_INLINE Words xor3(Words x, Words y, Words z) {
  return _mm512_ternarylogic_epi32(x, y, z, 0x96);
}

// Converts a row of sixteen words per message to a row of sixteen messages per word, and back.
TENSORIZER_AVX512_INLINE void transpose(Words* rows) {
  Words other[kLanes];
  for (std::size_t i = 0; i < kLanes; i += 2) {
    other[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    other[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (std::size_t i = 0; i < kLanes; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(other[i], other[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(other[i], other[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(other[i + 1], other[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(other[i + 1], other[i + 3]);
  }
  // Each row now holds four blocks of four words: the even ones of two rows, and the odd ones.
  for (std::size_t i = 0; i < 4; ++i) {
    for (const std::size_t half : {std::size_t{0}, std::size_t{8}}) {
      const Words& above = rows[half + i];
      const Words& below = rows[half + i + 4];
      other[half + i] = _mm512_shuffle_i32x4(above, below, 0x88);
      other[half + i + 4] = _mm512_shuffle_i32x4(above, below, 0xdd);
    }
  }
  for (std::size_t i = 0; i < 8; ++i) {
    rows[i] = _mm512_shuffle_i32x4(other[i], other[i + 8], 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(other[i], other[i + 8], 0xdd);
  }
}

// Runs one of the 64 rounds. `schedule` is a ring of sixteen words. `letters` are a..h, which move
// on by one place in each round: instead of moving them, a round addresses shifted places.
template <std::size_t kRound>
TENSORIZER_AVX512_INLINE void round(Words* letters, Words* schedule) {
  const auto letter = [letters](std::size_t number)
                          __attribute__((target("avx512f,avx512bw"), always_inline)) -> Words& {
    return letters[(number + 64 - kRound) % 8];
  };
  Words& word = schedule[kRound % 16];
  if constexpr (kRound >= 16) {
    const Words early = schedule[(kRound + 1) % 16];
    const Words late = schedule[(kRound + 14) % 16];
    const Words sigma0 =
        xor3(_mm512_ror_epi32(early, 7), _mm512_ror_epi32(early, 18), _mm512_srli_epi32(early, 3));
    const Words sigma1 =
        xor3(_mm512_ror_epi32(late, 17), _mm512_ror_epi32(late, 19), _mm512_srli_epi32(late, 10));
    word = _mm512_add_epi32(_mm512_add_epi32(word, sigma0),
                            _mm512_add_epi32(schedule[(kRound + 9) % 16], sigma1));
  }
  const Words a = letter(0), b = letter(1), c = letter(2);
  const Words e = letter(4), f = letter(5), g = letter(6);
  const Words sum0 = xor3(_mm512_ror_epi32(a, 2), _mm512_ror_epi32(a, 13), _mm512_ror_epi32(a, 22));
  const Words sum1 = xor3(_mm512_ror_epi32(e, 6), _mm512_ror_epi32(e, 11), _mm512_ror_epi32(e, 25));
  const Words choice = _mm512_ternarylogic_epi32(e, f, g, 0xca);
  const Words majority = _mm512_ternarylogic_epi32(a, b, c, 0xe8);
  const Words constant = _mm512_set1_epi32(static_cast<int>(kSha256Constants[kRound]));
  const Words first = _mm512_add_epi32(_mm512_add_epi32(letter(7), sum1),
                                       _mm512_add_epi32(choice, _mm512_add_epi32(constant, word)));
  letter(3) = _mm512_add_epi32(letter(3), first);
  letter(7) = _mm512_add_epi32(first, _mm512_add_epi32(sum0, majority));
}

template <std::size_t... kRound>
TENSORIZER_AVX512_INLINE void all_rounds(Words* letters, Words* schedule,
                                         std::index_sequence<kRound...>) {
  (round<kRound>(letters, schedule), ...);
}

TENSORIZER_AVX512 void compress_sixteen(std::uint32_t* const* states,
                                        const std::byte* const* blocks,
                                        std::size_t count) noexcept {
  Words letters[kLanes];  // eight, and as many zeros
  for (std::size_t i = 0; i < kLanes; ++i) {
    letters[i] =
        _mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(states[i])));
  }
  transpose(letters);
  const Words big_endian =
      _mm512_broadcast_i32x4(_mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203));
  for (std::size_t offset = 0; offset < count * kSha256BlockSize; offset += kSha256BlockSize) {
    Words schedule[kLanes];
    for (std::size_t i = 0; i < kLanes; ++i) {
      // The processor prefetches only a few streams by itself. Prefetching past the end is
      // harmless.
      _mm_prefetch(reinterpret_cast<const char*>(blocks[i] + offset + kAhead), _MM_HINT_T0);
      schedule[i] = _mm512_shuffle_epi8(_mm512_loadu_si512(blocks[i] + offset), big_endian);
    }
    transpose(schedule);
    Words before[8];
    std::copy_n(letters, 8, before);
    all_rounds(letters, schedule, std::make_index_sequence<64>());
    for (std::size_t i = 0; i < 8; ++i) letters[i] = _mm512_add_epi32(letters[i], before[i]);
  }
  transpose(letters);
  for (std::size_t i = 0; i < kLanes; ++i) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(states[i]), _mm512_castsi512_si256(letters[i]));
  }
}

// Lanes without a message compress the first message's blocks into a state that is discarded.
template <std::size_t kCount>
void avx512_compress(std::uint32_t* const states[], const std::byte* const blocks[],
                     std::size_t count) noexcept {
  std::uint32_t nobody[8] = {};
  std::array<std::uint32_t*, kLanes> all_states;
  std::array<const std::byte*, kLanes> all_blocks;
  for (std::size_t i = 0; i < kLanes; ++i) {
    all_states[i] = i < kCount ? states[i] : nobody;
    all_blocks[i] = blocks[i < kCount ? i : 0];
  }
  compress_sixteen(all_states.data(), all_blocks.data(), count);
}

template <std::size_t... kIndex>
constexpr std::array<Sha256Kernel, kLanes> kernels(std::index_sequence<kIndex...>) {
  return {avx512_compress<kIndex + 1>...};
}

constexpr std::array<Sha256Kernel, kLanes> kAvx512Kernels =
    kernels(std::make_index_sequence<kLanes>());

}  // namespace

Sha256Variant sha256_avx512() noexcept {
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw")) return {};
  return {kAvx512Kernels};
}

}  // namespace tensorizer

#else

namespace tensorizer {

Sha256Variant sha256_avx512() noexcept { return {}; }

}  // namespace tensorizer

#endif
