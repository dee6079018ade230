// What tensor headers say beyond the index, kept of tensors that were loaded: their places in a
// module, and the digests that their data has.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "base/cancel.h"
#include "format/tensor_header.h"

namespace tensorizer {

// Safe from any thread.
class HeaderCache {
 public:
  void keep(std::uint32_t entry, const TensorHeader& header);
  // 0 of a tensor whose header was not kept.
  std::uint16_t module_index(std::uint32_t entry) const;
  // Whether data is what was saved, by every digest that the header has; nothing where there is no
  // header, or it has none.
  std::optional<bool> matches(std::uint32_t entry, ConstBytes data, Cancel& cancel) const;

 private:
  struct Kept {
    std::uint16_t module_index = 0;
    std::optional<std::uint32_t> crc32;
    std::optional<Sha256Digest> sha256;
    std::vector<std::byte> hashed;
  };

  Kept find(std::uint32_t entry) const;

  mutable std::mutex mutex_;
  std::vector<Kept> kept_;
};

}  // namespace tensorizer
