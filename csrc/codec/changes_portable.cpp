// The scan for processors that have none of their own.
#include <algorithm>
#include <bit>

#include "codec/changes_scan.h"
#include "codec/changes_words.h"

namespace tensorizer {

namespace {

template <typename Word>
void classify_batch(const std::byte* elements, std::size_t count, const Thresholds& thresholds,
                    ClassMasks& masks) {
  std::array<std::uint8_t, kKeys> classes{};
  for (std::size_t i = 0; i < thresholds.count; ++i) {
    for (std::size_t key = thresholds.keys[i]; key < kKeys; ++key) ++classes[key];
  }
  masks.totals.fill(0);
  for (std::size_t at = 0, word = 0; at < count; at += kWordBits, ++word) {
    std::array<std::uint64_t, kMostClasses> bits{};
    const std::size_t here = std::min(kWordBits, count - at);
    for (std::size_t i = 0; i < here; ++i) {
      bits[classes[key_of(word_at<Word>(elements, at + i))]] |= 1ULL << i;
    }
    for (std::size_t c = 0; c <= thresholds.count; ++c) {
      masks.bits[c][word] = bits[c];
      masks.counts[c][word] = static_cast<std::uint8_t>(std::popcount(bits[c]));
      masks.totals[c] += masks.counts[c][word];
    }
  }
}

template <typename Word>
void compare_batch(const std::byte* base, const std::byte* fresh, std::size_t count,
                   std::uint64_t* changed) {
  for (std::size_t at = 0, word = 0; at < count; at += kWordBits, ++word) {
    const std::size_t here = std::min(kWordBits, count - at);
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < here; ++i) {
      const bool differs = word_at<Word>(base, at + i) != word_at<Word>(fresh, at + i);
      bits |= std::uint64_t{differs} << i;
    }
    changed[word] = bits;
  }
}

std::size_t rank(const ClassMasks& masks, std::size_t of_class, const std::uint64_t* changed,
                 std::size_t words, std::uint32_t before, Places& places) noexcept {
  std::size_t found = 0;
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint64_t all = masks.bits[of_class][i];
    for_each_bit(all & changed[i], [&](std::size_t bit) {
      const std::uint64_t below = all & ((1ULL << bit) - 1);
      places.ranks[found] = before + static_cast<std::uint32_t>(std::popcount(below));
      places.positions[found++] = static_cast<std::uint16_t>(i * kWordBits + bit);
    });
    before += masks.counts[of_class][i];
  }
  return found;
}

std::size_t place(const ClassMasks& masks, std::size_t of_class, const std::uint32_t* ranks,
                  std::size_t count, std::size_t words, std::uint32_t before,
                  Places& places) noexcept {
  std::size_t found = 0;
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint32_t end = before + masks.counts[of_class][i];
    std::uint64_t left = masks.bits[of_class][i];
    std::uint32_t passed = before;
    for (; found < count && ranks[found] < end; ++found) {
      for (; passed < ranks[found]; ++passed) left &= left - 1;
      const auto bit = static_cast<std::size_t>(std::countr_zero(left));
      places.positions[found] = static_cast<std::uint16_t>(i * kWordBits + bit);
    }
    before = end;
  }
  return found;
}

}  // namespace

Scan portable_scan() noexcept {
  return {[](std::uint32_t size, const std::byte* elements, std::size_t count,
             const Thresholds& thresholds, ClassMasks& masks) noexcept {
            with_word(size, [&](auto word) {
              classify_batch<decltype(word)>(elements, count, thresholds, masks);
            });
          },
          [](std::uint32_t size, const std::byte* base, const std::byte* fresh, std::size_t count,
             std::uint64_t* changed) noexcept {
            with_word(size, [&](auto word) {
              compare_batch<decltype(word)>(base, fresh, count, changed);
            });
          },
          rank, place};
}

}  // namespace tensorizer
