// Reads tensors block by block, as deltas cut them: several blocks at a time, so that their digests
// are computed side by side.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "codec/changes.h"
#include "codec/sha256.h"
#include "engine/digest/chunks.h"

namespace tensorizer {

// Returns how many blocks a worker reads at once, if `workers` share `memory`: as many as SHA-256
// hashes side by side, at most.
inline std::size_t blocks_at_once(std::uint64_t memory, int workers) {
  const std::uint64_t share = memory / static_cast<std::uint64_t>(workers);
  return std::clamp<std::uint64_t>(share / kChangesBlock, 1, sha256_lanes());
}

// Some blocks of a tensor that follow each other.
struct Window {
  std::uint64_t position = 0;  // of the first one, in the data
  std::vector<std::byte> bytes{};
  std::vector<Digest> digests{};  // of the blocks

  std::size_t count() const noexcept { return chunk_count(bytes.size(), kChangesBlock); }
  std::uint64_t end() const noexcept { return position + bytes.size(); }
  Bytes block(std::size_t i) {
    const std::size_t at = i * kChangesBlock;
    return Bytes(bytes).subspan(at, std::min<std::size_t>(kChangesBlock, bytes.size() - at));
  }
  // Moves on to the next blocks of data of this size. Their bytes are then to be read.
  void advance(std::uint64_t data_size, std::size_t blocks) {
    position = end();
    bytes.resize(std::min<std::uint64_t>(blocks * kChangesBlock, data_size - position));
    digests.resize(count());
  }
  void restart() { *this = {}; }
  ChunkedBytes to_digest() { return {bytes, digests}; }
  // Computes the digests.
  void digest() {
    const ChunkedBytes chunks = to_digest();
    digest_chunks({&chunks, 1}, Hash::Sha256, kChangesBlock);
  }
};

}  // namespace tensorizer
