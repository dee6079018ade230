#include "codec/sha256_variants.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>

// The instructions are enabled per function, so the file needs no compiler flags of its own, and
// nothing in it runs before the processor has been checked. AVX is used for its three-operand
// encodings, not for its width: they save the moves that would otherwise be a third of the code.
#define TENSORIZER_SHANI __attribute__((target("sha,avx")))
#define TENSORIZER_SHANI_INLINE __attribute__((target("sha,avx"), always_inline)) inline

namespace tensorizer {
namespace {

// The state of one message, between blocks and during one. The instructions take the eight words
// a..h as {f, e, b, a} and {h, g, d, c}, lowest first.
struct Lane {
  __m128i feba;
  __m128i hgdc;
  __m128i feba_before;
  __m128i hgdc_before;
  __m128i schedule[4];  // sixteen words, a ring: group g of four is at g % 4
};

TENSORIZER_SHANI_INLINE void load(Lane& lane, const std::uint32_t* state) {
  const __m128i dcba = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state));
  const __m128i hgfe = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4));
  const __m128i cdab = _mm_shuffle_epi32(dcba, 0xB1);
  const __m128i efgh = _mm_shuffle_epi32(hgfe, 0x1B);
  lane.feba = _mm_alignr_epi8(cdab, efgh, 8);
  lane.hgdc = _mm_blend_epi16(efgh, cdab, 0xF0);
}

TENSORIZER_SHANI_INLINE void store(const Lane& lane, std::uint32_t* state) {
  const __m128i abef = _mm_shuffle_epi32(lane.feba, 0x1B);
  const __m128i ghcd = _mm_shuffle_epi32(lane.hgdc, 0xB1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(abef, ghcd, 0xF0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(ghcd, abef, 8));
}

// Four of the 64 rounds of one block.
template <int kGroup>
TENSORIZER_SHANI_INLINE void rounds(Lane& lane, const std::byte* block) {
  __m128i& now = lane.schedule[kGroup % 4];
  __m128i& before = lane.schedule[(kGroup + 3) % 4];
  __m128i& after = lane.schedule[(kGroup + 1) % 4];

  if constexpr (kGroup == 0) {
    lane.feba_before = lane.feba;
    lane.hgdc_before = lane.hgdc;
  }
  if constexpr (kGroup < 4) {
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    now = _mm_shuffle_epi8(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + kGroup * sizeof(__m128i))),
        big_endian);
  }
  __m128i words = _mm_add_epi32(
      now, _mm_load_si128(reinterpret_cast<const __m128i*>(kSha256Constants + kGroup * 4)));
  lane.hgdc = _mm_sha256rnds2_epu32(lane.hgdc, lane.feba, words);
  words = _mm_shuffle_epi32(words, 0x0E);
  lane.feba = _mm_sha256rnds2_epu32(lane.feba, lane.hgdc, words);
  if constexpr (kGroup >= 3 && kGroup < 15) {
    after = _mm_add_epi32(after, _mm_alignr_epi8(now, before, 4));
    after = _mm_sha256msg2_epu32(after, now);
  }
  if constexpr (kGroup >= 1 && kGroup < 13) before = _mm_sha256msg1_epu32(before, now);
  if constexpr (kGroup == 15) {
    lane.feba = _mm_add_epi32(lane.feba, lane.feba_before);
    lane.hgdc = _mm_add_epi32(lane.hgdc, lane.hgdc_before);
  }
}

// Runs the same four rounds on every lane before the next four, so that the processor can execute
// instructions of the next lane while those of one lane wait for each other. A lane computes its
// words for later rounds last, because nothing waits for them yet.
template <int kGroup, std::size_t... kLane>
TENSORIZER_SHANI_INLINE void rounds_of_all(Lane* lanes, const std::byte* const blocks[],
                                           std::size_t offset) {
  (rounds<kGroup>(lanes[kLane], blocks[kLane] + offset), ...);
  if constexpr (kGroup < 15) rounds_of_all<kGroup + 1, kLane...>(lanes, blocks, offset);
}

template <std::size_t... kLane>
TENSORIZER_SHANI void shani_compress(std::uint32_t* const states[], const std::byte* const blocks[],
                                     std::size_t count) noexcept {
  // Other code may have left values in the upper halves of the registers. The SHA instructions do
  // not clear them, and then take a hundred times as long on some processors.
  _mm256_zeroupper();
  Lane lanes[sizeof...(kLane)];
  (load(lanes[kLane], states[kLane]), ...);
  for (std::size_t offset = 0; offset < count * kSha256BlockSize; offset += kSha256BlockSize) {
    rounds_of_all<0, kLane...>(lanes, blocks, offset);
  }
  (store(lanes[kLane], states[kLane]), ...);
}

constexpr std::array<Sha256Kernel, 4> kShaniKernels{
    shani_compress<0>, shani_compress<0, 1>, shani_compress<0, 1, 2>, shani_compress<0, 1, 2, 3>};

bool processor_has_it() noexcept {
  // __builtin_cpu_supports() of clang 14 does not know "sha".
  unsigned int a = 0, b = 0, c = 0, d = 0;
  const bool sha = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA);
  return sha && __builtin_cpu_supports("avx");
}

}  // namespace

Sha256Variant sha256_shani() noexcept {
  if (!processor_has_it()) return {};
  return {kShaniKernels};
}

}  // namespace tensorizer

#else

namespace tensorizer {

Sha256Variant sha256_shani() noexcept { return {}; }

}  // namespace tensorizer

#endif
