// The numbers in the code of a block of changes (codec/changes.h): bits, from the lowest on.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/bytes.h"

namespace tensorizer {

// A number is written as its part above the `low` lowest bits, as that many zeros and a one, and
// these bits. One whose part above is kLongest or more is kLongest zeros, and the number itself.
struct NumberCode {
  static constexpr std::uint32_t kLongest = 24;
  static constexpr std::uint32_t kMostLow = 32;
  static constexpr std::uint32_t kLowBits = 6;  // in which `low` is written

  std::uint32_t low = 0;   // at most kMostLow
  std::uint32_t wide = 0;  // the bits of the largest number

  std::uint64_t bits_of(std::uint64_t number) const noexcept {
    const std::uint64_t above = number >> low;
    return above < kLongest ? above + 1 + low : kLongest + wide;
  }
};

// Returns the code that writes these numbers in the fewest bits.
template <typename Number>
NumberCode best_code(std::span<const Number> numbers, std::uint32_t wide) {
  std::uint64_t sum = 0;
  for (const Number number : numbers) sum += std::min<std::uint64_t>(number, 1ULL << 40);
  const std::uint64_t mean = numbers.empty() ? 0 : sum / numbers.size();
  const auto middle =
      std::min(static_cast<std::uint32_t>(std::bit_width(mean)), NumberCode::kMostLow);
  NumberCode best{0, wide};
  std::uint64_t fewest = ~0ULL;
  for (std::uint32_t low = middle < 2 ? 0 : middle - 2; low <= middle; ++low) {
    const NumberCode code{low, wide};
    std::uint64_t bits = 0;
    for (const Number number : numbers) bits += code.bits_of(number);
    if (bits < fewest) best = code;
    fewest = std::min(fewest, bits);
  }
  return best;
}

class BitWriter {
 public:
  explicit BitWriter(std::vector<std::byte>& out) : out_(out) {}

  // `count` is at most 32, and `bits` has no others.
  void put(std::uint64_t bits, std::uint32_t count) {
    held_ |= bits << count_;
    count_ += count;
    if (count_ < 32) return;
    const auto word = static_cast<std::uint32_t>(held_);
    const std::size_t at = out_.size();
    out_.resize(at + sizeof(word));
    std::memcpy(out_.data() + at, &word, sizeof(word));
    held_ >>= 32;
    count_ -= 32;
  }
  void put_number(std::uint64_t number, NumberCode code) {
    const std::uint64_t above = number >> code.low;
    if (above >= NumberCode::kLongest) {
      put(0, NumberCode::kLongest);
      put(number & 0xffffffff, std::min(code.wide, 32U));
      if (code.wide > 32) put(number >> 32, code.wide - 32);
      return;
    }
    put(1ULL << above, static_cast<std::uint32_t>(above) + 1);
    put(number & ((1ULL << code.low) - 1), code.low);
  }
  // Appends the bits that are left.
  void finish() {
    for (; count_ > 0; count_ -= std::min(count_, 8U), held_ >>= 8) {
      out_.push_back(static_cast<std::byte>(held_));
    }
  }

 private:
  std::vector<std::byte>& out_;
  std::uint64_t held_ = 0;
  std::uint32_t count_ = 0;
};

// Behind the end, all bits are 0.
class BitReader {
 public:
  explicit BitReader(ConstBytes bytes) : bytes_(bytes) {}

  // `count` is at most 32.
  std::uint64_t take(std::uint32_t count) {
    const std::uint64_t bits = peek() & ((1ULL << count) - 1);
    at_ += count;
    return bits;
  }
  std::uint64_t take_number(NumberCode code) {
    const std::uint64_t bits = peek();
    const auto above = static_cast<std::uint32_t>(std::countr_zero(bits));
    if (above < NumberCode::kLongest) {
      at_ += above + 1 + code.low;
      const std::uint64_t low = (bits >> (above + 1)) & ((1ULL << code.low) - 1);
      return (std::uint64_t{above} << code.low) | low;
    }
    at_ += NumberCode::kLongest;
    const std::uint64_t first = take(std::min(code.wide, 32U));
    return code.wide > 32 ? first | take(code.wide - 32) << 32 : first;
  }
  // Returns whether all bytes have been taken, but for zeros that fill the last one.
  bool at_end() const noexcept { return (at_ + 7) / 8 == bytes_.size() && peek() == 0; }
  // Returns whether bits have been taken that are not there.
  bool is_behind_end() const noexcept { return (at_ + 7) / 8 > bytes_.size(); }

 private:
  // Returns the next bits: 57 at least.
  std::uint64_t peek() const noexcept {
    const std::size_t byte = at_ / 8;
    std::uint64_t bits = 0;
    if (byte + sizeof(bits) <= bytes_.size()) {
      std::memcpy(&bits, bytes_.data() + byte, sizeof(bits));
    } else if (byte < bytes_.size()) {
      std::memcpy(&bits, bytes_.data() + byte, bytes_.size() - byte);
    }
    return bits >> (at_ % 8);
  }

  ConstBytes bytes_;
  std::uint64_t at_ = 0;  // bits
};

}  // namespace tensorizer
