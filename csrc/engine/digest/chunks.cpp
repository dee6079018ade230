#include "engine/digest/chunks.h"

#include <algorithm>
#include <vector>

namespace tensorizer {

void digest_chunks(std::span<const ChunkedBytes> all, Hash hash, std::uint64_t chunk_size) {
  std::vector<HashedParts> chunks;
  for (const auto& [bytes, digests] : all) {
    for (std::size_t i = 0; i < digests.size(); ++i) {
      const std::uint64_t at = i * chunk_size;
      const std::uint64_t size = std::min<std::uint64_t>(chunk_size, bytes.size() - at);
      chunks.push_back({bytes.subspan(at, size)});
    }
  }
  const std::vector<Digest> found = hash_all(hash, chunks);
  auto next = found.begin();
  for (const ChunkedBytes& each : all) {
    std::copy_n(next, each.digests.size(), each.digests.begin());
    next += static_cast<std::ptrdiff_t>(each.digests.size());
  }
}

void RunningChunks::update(ConstBytes bytes) {
  while (!bytes.empty() && !digests_.empty()) {
    if (begun_ == 0 && bytes.size() >= chunk_size_) {
      const std::uint64_t whole = bytes.size() / chunk_size_;
      const ChunkedBytes chunks{bytes.first(whole * chunk_size_), digests_.first(whole)};
      digest_chunks({&chunks, 1}, hash_, chunk_size_);
      bytes = bytes.subspan(whole * chunk_size_);
      digests_ = digests_.subspan(whole);
      continue;
    }
    const std::uint64_t size = std::min<std::uint64_t>(chunk_size_ - begun_, bytes.size());
    update_hash(state_, bytes.first(size));
    bytes = bytes.subspan(size);
    begun_ += size;
    if (begun_ == chunk_size_) finish();
  }
}

void RunningChunks::finish() {
  if (begun_ == 0) return;
  digests_.front() = finish_hash(state_);
  digests_ = digests_.subspan(1);
  state_ = info_of(hash_).start();
  begun_ = 0;
}

}  // namespace tensorizer
