// The chunks of tensors' data whose digests a file may list.
//
// A file has one grid: every tensor is cut into chunks of one size, from its first byte on, and the
// last chunk of a tensor may be shorter.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "format/hashes.h"

namespace tensorizer {

inline constexpr std::uint64_t kUsualChunk = 1 << 20;
// How many digests a file lists at most: 128 MiB of them.
inline constexpr std::uint64_t kMostChunks = 4 << 20;

// Returns whether chunks may have this size: a power of two, so that it divides that of strips.
constexpr bool is_chunk_size(std::uint64_t size) noexcept {
  return std::has_single_bit(size) && size >= (64 << 10) && size <= (16 << 20);
}

constexpr std::uint64_t chunk_count(std::uint64_t data_size, std::uint64_t chunk_size) noexcept {
  return data_size / chunk_size + (data_size % chunk_size != 0 ? 1 : 0);
}

// The digests of all chunks of a file, and of its tensor headers if the format has them. They
// belong to its catalogue.
class ChunkDigests {
 public:
  // Makes an empty list, for a file that has none.
  ChunkDigests() = default;
  // `first` has the number of each tensor's first chunk, and the number of all chunks at the end.
  ChunkDigests(Hash hash, std::uint64_t chunk_size, ConstBytes headers, ConstBytes digests,
               std::vector<std::uint64_t> first)
      : hash_(hash),
        chunk_size_(chunk_size),
        headers_(headers),
        digests_(digests),
        first_(std::move(first)) {}

  // Returns whether the file lists no digests of chunks. It lists them also if it has no chunks.
  bool empty() const noexcept { return chunk_size_ == 0; }
  Hash hash() const noexcept { return hash_; }
  std::uint64_t chunk_size() const noexcept { return chunk_size_; }
  // Returns the digests of all chunks of the file, tensor by tensor.
  ConstBytes all() const noexcept { return digests_; }
  // Returns whether it has digests of tensor headers, if there are tensors.
  bool covers_headers() const noexcept { return !headers_.empty() || first_.size() <= 1; }
  // Returns the SHA-256 of a tensor's header, whichever the hash of the chunks is.
  ConstBytes header_digest(std::size_t entry) const {
    return headers_.subspan(entry * kSha256Size, kSha256Size);
  }
  // Returns the digests of all chunks of a tensor.
  ConstBytes digests(std::size_t entry) const {
    return subspan(first_[entry], first_[entry + 1] - first_[entry]);
  }
  // Returns the digest of one chunk of a tensor, whose chunks count from 0.
  ConstBytes digest(std::size_t entry, std::uint64_t chunk) const {
    return subspan(first_[entry] + chunk, 1);
  }

 private:
  ConstBytes subspan(std::uint64_t first, std::uint64_t count) const {
    const std::size_t size = info_of(hash_).size;
    return digests_.subspan(first * size, count * size);
  }

  Hash hash_ = Hash::Sha256;
  std::uint64_t chunk_size_ = 0;
  ConstBytes headers_;
  ConstBytes digests_;
  std::vector<std::uint64_t> first_;
};

}  // namespace tensorizer
