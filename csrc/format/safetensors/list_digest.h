// The digest that ends a list of digests in the metadata of a safetensors file. It tells whether
// the list belongs to the tensors of the file, or was copied from another one.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "codec/sha256.h"
#include "format/dtype.h"

namespace tensorizer {

class ListDigest {
 public:
  // `chunk_size` is 0 if the list is one of whole tensors.
  explicit ListDigest(std::uint64_t chunk_size);

  // Adds the next tensor of the header, and its digests.
  void add(std::string_view name, DType dtype, std::span<const std::int64_t> shape,
           ConstBytes digests);
  // Returns the digest. The object must not be used afterwards.
  Sha256Digest finish() noexcept { return hash_.finish(); }

 private:
  Sha256 hash_;
};

}  // namespace tensorizer
