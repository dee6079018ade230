// The header in front of each tensor's data.
//
// All hashes of a tensor cover its header, with zeros for the hash values and without the crypt
// info, followed by its data.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "format/layout.h"
#include "format/tensors/crypt_info.h"
#include "format/tensors/index.h"
#include "tensorizer_ops/options.h"

namespace tensorizer {

// Throws Error(InvalidArgument) for a tensor that the format cannot hold: with a name that is
// malformed or too long, with a nested name if it is not a state-dict entry, or with more than 255
// dimensions.
void check_spec(const TensorSpec& spec);

// Returns the size of the header if it starts at the absolute offset `offset`. It is padded so that
// data starts on a 64-byte boundary, and data of 64 KiB or more on a 4 KiB boundary.
std::uint64_t tensor_header_size(const TensorSpec& spec, const HeaderKind& kind,
                                 std::uint64_t offset);

// A header in memory, made with zeros for its hash values and MACs, which are set later.
class TensorHeaderImage {
 public:
  // Makes an image without bytes, for a format that has no such headers.
  TensorHeaderImage() = default;
  TensorHeaderImage(const TensorSpec& spec, const HeaderKind& kind, std::uint64_t size);

  ConstBytes bytes() const noexcept { return bytes_; }
  // Returns the parts of the header that the hashes cover. Correct only until a hash is set,
  // because the hashes cover zeros in their place.
  std::array<ConstBytes, 2> hashed() const noexcept {
    return {ConstBytes(bytes_).first(crypt_at_), ConstBytes(bytes_).subspan(crypt_end_)};
  }
  // Returns the nonce of the first chunk, if the data is encrypted. Each image has a fresh one.
  const Nonce& nonce() const noexcept { return crypt_.nonce; }

  // Thread-safe for different chunks.
  void set_mac(std::uint64_t chunk, const Mac& mac) noexcept;
  // Sets the digests of the kind, which must all be there.
  void set_digests(const Digests& digests) noexcept;

 private:
  ByHash<std::size_t> digest_at_;  // 0 for a hash that the header does not have
  std::size_t crypt_at_ = 0;
  std::size_t crypt_end_ = 0;
  CryptInfoLocation crypt_;
  std::vector<std::byte> bytes_;
};

// What the index says about the header of one tensor.
struct IndexedHeader {
  const Entry& entry;
  std::size_t number;  // of the entry, for messages
  bool encrypted;
  bool long_dimensions;
  const FileLocation& location;
};

// Checks the header in `bytes`, which are `entry.header_size()` bytes, against its index entry, and
// sets its hash values to zero. The result points into `bytes`. Throws InvalidFormat, and Crypto
// for malformed crypt info.
TensorDetails parse_tensor_header(Bytes bytes, const IndexedHeader& indexed);

// Throws InvalidFormat if the entry's header is longer than what such an entry can need.
void check_header_size(const Entry& entry, std::size_t number, bool encrypted,
                       const FileLocation& location);

}  // namespace tensorizer
