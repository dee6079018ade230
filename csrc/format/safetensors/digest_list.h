// The lists of digests in the metadata of a safetensors file.
//
// A list ends with two more digests. The first, of the tensors that it was made for, tells a list
// that a program has copied from a file with other tensors. The second, of all of the list, tells a
// damaged one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "codec/sha256.h"
#include "format/dtype.h"

namespace tensorizer {

// The digest of the names, types and shapes of tensors, in the order of the header.
class TensorsDigest {
 public:
  void add(std::string_view name, DType dtype, std::span<const std::int64_t> shape);
  // Returns the digest. The object must not be used afterwards.
  Sha256Digest finish() noexcept { return hash_.finish(); }

 private:
  Sha256 hash_;
};

struct DigestList {
  std::uint64_t chunk_size = 0;    // 0 if the digests are those of whole tensors
  std::vector<std::byte> digests;  // in the order of the header
  Sha256Digest tensors{};
};

// Returns the size of the text of a list.
std::uint64_t digest_list_size(std::uint64_t chunk_size, std::uint64_t digests);
std::string to_text(const DigestList& list);
// Returns nothing if the text is no list, or damaged.
std::optional<DigestList> parse_digest_list(std::string_view text, bool in_chunks);

}  // namespace tensorizer
