// Bytes in a row of a file.
#pragma once

#include <cstdint>

namespace tensorizer {

struct Span {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  std::uint64_t size() const { return end - begin; }
  bool has(std::uint64_t offset) const { return begin <= offset && offset < end; }
  bool covers(const Span& other) const { return begin <= other.begin && other.end <= end; }
};

}  // namespace tensorizer
