// Codes what changed between two versions of a block of elements, as steps of a training change
// weights: few elements, by little, and rather those whose exponent is small.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"

namespace tensorizer {

// The most bytes of a block.
inline constexpr std::uint64_t kChangesBlock = 1 << 20;

struct ElementKind {
  std::uint32_t size = 1;  // 1, 2, 4 or 8 bytes
  bool floating = false;   // sign, exponent, mantissa

  friend bool operator==(const ElementKind&, const ElementKind&) = default;
};

// Appends the code of what turns the block `base` into `fresh`, which has the same size: nothing if
// they are equal, `fresh` itself if no code is shorter. docs/format.md describes the code.
void encode_changes(ElementKind kind, ConstBytes base, ConstBytes fresh,
                    std::vector<std::byte>& out);

// Turns a block into the one that was encoded. Returns false if no block is encoded like this; the
// block then has any bytes.
[[nodiscard]] bool apply_changes(ElementKind kind, ConstBytes code, Bytes block);

}  // namespace tensorizer
