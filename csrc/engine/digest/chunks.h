// Computes the digests of chunks of tensors' data.
#pragma once

#include <cstdint>
#include <span>

#include "format/chunks.h"

namespace tensorizer {

// Bytes that begin with a chunk, and where the digest of each of their chunks goes.
struct ChunkedBytes {
  ConstBytes bytes;
  std::span<Digest> digests;
};

// Computes the digests of many chunks side by side.
void digest_chunks(std::span<const ChunkedBytes> all, Hash hash, std::uint64_t chunk_size);

// Computes the digests of one tensor's chunks while its data arrives in order, piece by piece.
class RunningChunks {
 public:
  // Does nothing if there are no digests to compute.
  RunningChunks(Hash hash, std::uint64_t chunk_size, std::span<Digest> digests)
      : hash_(hash), chunk_size_(chunk_size), digests_(digests), state_(info_of(hash).start()) {}

  void update(ConstBytes bytes);
  // Completes the last chunk, if it is shorter than the others.
  void finish();

 private:
  const Hash hash_;
  const std::uint64_t chunk_size_;
  std::span<Digest> digests_;  // of the chunks that are not complete
  std::uint64_t begun_ = 0;    // bytes of a chunk that has arrived in part
  HashState state_;            // of these bytes
};

}  // namespace tensorizer
