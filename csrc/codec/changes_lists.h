// The lists of numbers in the code of a block of changes (codec/changes.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "codec/changes_bits.h"

namespace tensorizer {

template <typename Number>
void put_numbers(BitWriter& out, std::span<const Number> numbers, std::uint32_t wide) {
  if (numbers.empty()) return;
  const NumberCode code = best_code(numbers, wide);
  out.put(code.low, NumberCode::kLowBits);
  for (const Number number : numbers) out.put_number(number, code);
}

// Returns false if no numbers are written like this.
template <typename Number>
bool take_numbers(BitReader& in, std::span<Number> numbers, std::uint32_t wide) {
  if (numbers.empty()) return true;
  const NumberCode code{static_cast<std::uint32_t>(in.take(NumberCode::kLowBits)), wide};
  if (code.low > NumberCode::kMostLow) return false;
  for (Number& number : numbers) {
    const std::uint64_t taken = in.take_number(code);
    number = static_cast<Number>(taken);
    if (number != taken) return false;
  }
  return !in.is_behind_end();
}

// Some of the numbers below a count.
struct Chosen {
  std::uint32_t size = 0;             // how many they are
  bool inverted = false;              // whether the others are listed
  std::vector<std::uint32_t> listed;  // in ascending order
};

// Returns the numbers below `count` that are not listed. Both lists are in ascending order.
std::vector<std::uint32_t> complement(std::span<const std::uint32_t> listed, std::uint32_t count);

// Writes the numbers `chosen`, in ascending order, of those below `count`.
void put_chosen(BitWriter& out, std::vector<std::uint32_t> chosen, std::uint32_t count);

// Returns null if none of the numbers below `count` are written like this.
std::optional<Chosen> take_chosen(BitReader& in, std::uint32_t count);

}  // namespace tensorizer
