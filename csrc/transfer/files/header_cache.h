// Keeps what the headers of loaded tensors say beyond the index: the module index, and the digests
// of the data.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "base/cancel.h"
#include "format/catalogue.h"

namespace tensorizer {

// Thread-safe. `number` is that of a name in the file.
class HeaderCache {
 public:
  void keep(std::uint32_t number, const TensorDetails& details);
  // Keeps for a tied name what is kept for another name of the same tensor.
  void keep_tied(std::uint32_t number, std::uint32_t other, std::uint16_t module_index);
  // Returns 0 for a tensor whose header was not kept.
  std::uint16_t module_index(std::uint32_t number) const;
  // Returns none for a tensor whose header was not kept.
  Digests digests(std::uint32_t number) const;
  // Returns whether `data` has every digest that the header has; null if the header was not kept or
  // has no digests. Throws what `cancel` throws.
  std::optional<bool> matches(std::uint32_t number, ConstBytes data, Cancel& cancel) const;

 private:
  struct Kept {
    std::uint16_t module_index = 0;
    Digests digests;
    std::vector<std::byte> hashed;
  };

  Kept find(std::uint32_t number) const;

  mutable std::mutex mutex_;
  std::vector<Kept> kept_;
};

}  // namespace tensorizer
