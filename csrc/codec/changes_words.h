// The elements of a block of changes (codec/changes.h), as unsigned numbers of their size.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tensorizer {

inline constexpr std::size_t kKeys = 256;

template <typename Word>
Word word_at(const std::byte* elements, std::size_t i) noexcept {
  Word word;
  std::memcpy(&word, elements + i * sizeof(Word), sizeof(Word));
  return word;
}

template <typename Word>
void set_word(std::byte* elements, std::size_t i, Word word) noexcept {
  std::memcpy(elements + i * sizeof(Word), &word, sizeof(Word));
}

template <typename Word>
std::uint8_t key_of(Word word) noexcept {
  constexpr int kBits = 8 * sizeof(Word);
  if constexpr (kBits == 8) {
    return word & 0x7f;
  } else {
    return static_cast<std::uint8_t>(word >> (kBits - 9));
  }
}

// Calls `action` with an unsigned number of this size.
template <typename Action>
auto with_word(std::uint32_t size, const Action& action) {
  if (size == 1) return action(std::uint8_t{});
  if (size == 2) return action(std::uint16_t{});
  if (size == 4) return action(std::uint32_t{});
  return action(std::uint64_t{});
}

// Calls `each` with the numbers of the bits that are set.
template <typename Each>
void for_each_bit(std::uint64_t bits, const Each& each) {
  for (; bits != 0; bits &= bits - 1) each(static_cast<std::size_t>(std::countr_zero(bits)));
}

}  // namespace tensorizer
