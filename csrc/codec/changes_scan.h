// How blocks of elements are compared and divided into classes, which has one file per kind of
// processor. Only changes.cpp, these files and the tests include this.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "codec/changes.h"

namespace tensorizer {

inline constexpr std::size_t kMostClasses = 8;
inline constexpr std::size_t kWordBits = 64;
// How many elements are looked at at a time.
inline constexpr std::size_t kBatch = 4096;
inline constexpr std::size_t kBatchWords = kBatch / kWordBits;

// The first keys of the classes behind the first one, in ascending order. The key of a floating
// element is the eight bits behind its sign (seven if it has one byte), that of others is 0.
struct Thresholds {
  std::array<std::uint8_t, kMostClasses - 1> keys{};
  std::size_t count = 0;
};

// For each class, a bit for each element of a batch, and how many are set in each word and in all.
struct ClassMasks {
  std::array<std::array<std::uint64_t, kBatchWords>, kMostClasses> bits;
  std::array<std::array<std::uint8_t, kBatchWords>, kMostClasses> counts;
  std::array<std::uint32_t, kMostClasses> totals;  // of the counts
};

// Some elements of a class in a batch.
struct Places {
  std::array<std::uint32_t, kBatch> ranks;      // among all elements of the class
  std::array<std::uint16_t, kBatch> positions;  // in the batch
};

struct Scan {
  // Sets the masks of a batch of `count` floating elements of this size. Bits behind the last
  // element are 0.
  void (*classify)(std::uint32_t size, const std::byte* elements, std::size_t count,
                   const Thresholds& thresholds, ClassMasks& masks) noexcept;
  // Sets a bit for each of `count` elements that differs.
  void (*compare)(std::uint32_t size, const std::byte* base, const std::byte* fresh,
                  std::size_t count, std::uint64_t* changed) noexcept;
  // Finds the elements of a class that have changed, and returns how many they are. `before` is the
  // number of elements of the class before the batch.
  std::size_t (*rank)(const ClassMasks& masks, std::size_t of_class, const std::uint64_t* changed,
                      std::size_t words, std::uint32_t before, Places& places) noexcept;
  // Finds the positions of those of the `count` ranks, in ascending order, that are in the batch,
  // and returns how many they are.
  std::size_t (*place)(const ClassMasks& masks, std::size_t of_class, const std::uint32_t* ranks,
                       std::size_t count, std::size_t words, std::uint32_t before,
                       Places& places) noexcept;
};

Scan portable_scan() noexcept;
// Null functions if the processor lacks AVX-512.
Scan avx512_scan() noexcept;

}  // namespace tensorizer
