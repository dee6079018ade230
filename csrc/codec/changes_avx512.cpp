#include "codec/changes_scan.h"

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
#include <cstring>

#define TENSORIZER_SCAN __attribute__((target("avx512f,avx512bw,avx512dq,bmi,bmi2,popcnt")))
#define TENSORIZER_SCAN_INLINE \
  __attribute__((target("avx512f,avx512bw,avx512dq,bmi,bmi2,popcnt"), always_inline)) inline

namespace tensorizer {
namespace {

template <std::size_t kSize>
constexpr std::size_t kVectors = kSize;  // that hold a word of elements

TENSORIZER_SCAN_INLINE __m512i vector_at(const std::byte* elements, std::size_t i) {
  return _mm512_loadu_si512(elements + i * sizeof(__m512i));
}

// Returns the keys of a word of elements.
template <std::size_t kSize>
TENSORIZER_SCAN_INLINE __m512i keys_of(const std::byte* elements) {
  if constexpr (kSize == 1) {
    return _mm512_and_si512(vector_at(elements, 0), _mm512_set1_epi8(0x7f));
  } else if constexpr (kSize == 2) {
    const __m256i low = _mm512_cvtepi16_epi8(_mm512_srli_epi16(vector_at(elements, 0), 7));
    const __m256i high = _mm512_cvtepi16_epi8(_mm512_srli_epi16(vector_at(elements, 1), 7));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  } else {
    alignas(64) std::byte keys[kWordBits];
    for (std::size_t i = 0; i < kVectors<kSize>; ++i) {
      const __m512i vector = vector_at(elements, i);
      auto* const out = reinterpret_cast<__m128i*>(keys + i * kWordBits / kSize);
      if constexpr (kSize == 4) {
        _mm_store_si128(out, _mm512_cvtepi32_epi8(_mm512_srli_epi32(vector, 23)));
      } else {
        _mm_storel_epi64(out, _mm512_cvtepi64_epi8(_mm512_srli_epi64(vector, 55)));
      }
    }
    return _mm512_load_si512(keys);
  }
}

template <std::size_t kSize>
TENSORIZER_SCAN_INLINE std::uint64_t different(const std::byte* a, const std::byte* b) {
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < kVectors<kSize>; ++i) {
    const __m512i left = vector_at(a, i);
    const __m512i right = vector_at(b, i);
    std::uint64_t part = 0;
    if constexpr (kSize == 1) part = _mm512_cmpneq_epi8_mask(left, right);
    if constexpr (kSize == 2) part = _mm512_cmpneq_epi16_mask(left, right);
    if constexpr (kSize == 4) part = _mm512_cmpneq_epi32_mask(left, right);
    if constexpr (kSize == 8) part = _mm512_cmpneq_epi64_mask(left, right);
    mask |= part << (i * kWordBits / kSize);
  }
  return mask;
}

// Copies the elements of a last word that is not full, with zeros behind them.
struct Tail {
  Tail(const std::byte* elements, std::size_t size) { std::memcpy(bytes, elements, size); }
  std::byte bytes[kWordBits * 8] = {};
};

template <std::size_t kSize>
TENSORIZER_SCAN_INLINE void classify_word(const std::byte* elements, std::uint64_t valid,
                                          std::size_t word, const __m512i* first_keys,
                                          std::size_t classes, ClassMasks& masks) {
  const __m512i keys = keys_of<kSize>(elements);
  std::uint64_t from_here = valid;  // the elements of this class and those behind it
  for (std::size_t i = 0; i < classes; ++i) {
    std::uint64_t behind = 0;
    if (i + 1 < classes) behind = _mm512_cmpge_epu8_mask(keys, first_keys[i + 1]) & valid;
    const std::uint64_t bits = from_here & ~behind;
    masks.bits[i][word] = bits;
    masks.counts[i][word] = static_cast<std::uint8_t>(_mm_popcnt_u64(bits));
    from_here = behind;
  }
}

template <std::size_t kSize>
TENSORIZER_SCAN void classify_vectors(const std::byte* elements, std::size_t count,
                                      const Thresholds& thresholds, ClassMasks& masks) noexcept {
  const std::size_t classes = thresholds.count + 1;
  __m512i first_keys[kMostClasses];
  for (std::size_t i = 1; i < classes; ++i) {
    first_keys[i] = _mm512_set1_epi8(static_cast<char>(thresholds.keys[i - 1]));
  }
  const std::size_t full = count / kWordBits;
  for (std::size_t i = 0; i < full; ++i) {
    classify_word<kSize>(elements + i * kWordBits * kSize, ~0ULL, i, first_keys, classes, masks);
  }
  if (const std::size_t left = count % kWordBits; left > 0) {
    const Tail tail(elements + full * kWordBits * kSize, left * kSize);
    classify_word<kSize>(tail.bytes, ~0ULL >> (kWordBits - left), full, first_keys, classes, masks);
  }
  const std::size_t words = (count + kWordBits - 1) / kWordBits;
  const __mmask64 used = ~0ULL >> (kBatchWords - words);
  for (std::size_t i = 0; i < classes; ++i) {
    const __m512i counts = _mm512_maskz_loadu_epi8(used, masks.counts[i].data());
    const __m512i sums = _mm512_sad_epu8(counts, _mm512_setzero_si512());
    masks.totals[i] = static_cast<std::uint32_t>(_mm512_reduce_add_epi64(sums));
  }
}

template <std::size_t kSize>
TENSORIZER_SCAN void compare_vectors(const std::byte* base, const std::byte* fresh,
                                     std::size_t count, std::uint64_t* changed) noexcept {
  const std::size_t full = count / kWordBits;
  for (std::size_t i = 0; i < full; ++i) {
    const std::size_t at = i * kWordBits * kSize;
    changed[i] = different<kSize>(base + at, fresh + at);
  }
  if (const std::size_t left = count % kWordBits; left > 0) {
    const std::size_t at = full * kWordBits * kSize;
    changed[full] =
        different<kSize>(Tail(base + at, left * kSize).bytes, Tail(fresh + at, left * kSize).bytes);
  }
}

TENSORIZER_SCAN std::size_t fast_rank(const ClassMasks& masks, std::size_t of_class,
                                      const std::uint64_t* changed, std::size_t words,
                                      std::uint32_t before, Places& places) noexcept {
  std::size_t found = 0;
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint64_t all = masks.bits[of_class][i];
    for (std::uint64_t bits = all & changed[i]; bits != 0; bits = _blsr_u64(bits)) {
      const std::uint64_t below = all & (_blsi_u64(bits) - 1);
      places.ranks[found] = before + static_cast<std::uint32_t>(_mm_popcnt_u64(below));
      places.positions[found++] = static_cast<std::uint16_t>(i * kWordBits + _tzcnt_u64(bits));
    }
    before += masks.counts[of_class][i];
  }
  return found;
}

TENSORIZER_SCAN std::size_t fast_place(const ClassMasks& masks, std::size_t of_class,
                                       const std::uint32_t* ranks, std::size_t count,
                                       std::size_t words, std::uint32_t before,
                                       Places& places) noexcept {
  // The word of an element is the number of words that end at it or before. Counting them without a
  // branch is faster than a search, whose end cannot be predicted.
  alignas(64) std::uint16_t ends[kBatchWords];
  std::uint16_t end = 0;
  for (std::size_t i = 0; i < words; ++i) ends[i] = end += masks.counts[of_class][i];
  for (std::size_t i = words; i < kBatchWords; ++i) ends[i] = end;
  const __m512i low_ends = _mm512_load_si512(ends);
  const __m512i high_ends = _mm512_load_si512(ends + kBatchWords / 2);
  std::size_t found = 0;
  for (; found < count && ranks[found] - before < end; ++found) {
    const auto rank = static_cast<std::uint16_t>(ranks[found] - before);
    const __m512i all = _mm512_set1_epi16(static_cast<std::int16_t>(rank));
    const std::size_t word =
        static_cast<std::size_t>(_mm_popcnt_u32(_mm512_cmple_epu16_mask(low_ends, all)) +
                                 _mm_popcnt_u32(_mm512_cmple_epu16_mask(high_ends, all)));
    const int inside = rank - ends[word] + masks.counts[of_class][word];
    const std::uint64_t bit = _pdep_u64(1ULL << inside, masks.bits[of_class][word]);
    places.positions[found] = static_cast<std::uint16_t>(word * kWordBits + _tzcnt_u64(bit));
  }
  return found;
}

void fast_classify(std::uint32_t size, const std::byte* elements, std::size_t count,
                   const Thresholds& thresholds, ClassMasks& masks) noexcept {
  if (size == 1) classify_vectors<1>(elements, count, thresholds, masks);
  if (size == 2) classify_vectors<2>(elements, count, thresholds, masks);
  if (size == 4) classify_vectors<4>(elements, count, thresholds, masks);
  if (size == 8) classify_vectors<8>(elements, count, thresholds, masks);
}

void fast_compare(std::uint32_t size, const std::byte* base, const std::byte* fresh,
                  std::size_t count, std::uint64_t* changed) noexcept {
  if (size == 1) compare_vectors<1>(base, fresh, count, changed);
  if (size == 2) compare_vectors<2>(base, fresh, count, changed);
  if (size == 4) compare_vectors<4>(base, fresh, count, changed);
  if (size == 8) compare_vectors<8>(base, fresh, count, changed);
}

}  // namespace

Scan avx512_scan() noexcept {
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("bmi") ||
      !__builtin_cpu_supports("bmi2")) {
    return {};
  }
  return {fast_classify, fast_compare, fast_rank, fast_place};
}

}  // namespace tensorizer

#else

namespace tensorizer {

Scan avx512_scan() noexcept { return {}; }

}  // namespace tensorizer

#endif
