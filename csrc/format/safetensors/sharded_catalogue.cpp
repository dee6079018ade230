#include "format/safetensors/sharded_catalogue.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tensorizer {

ShardedCatalogue::ShardedCatalogue(std::vector<CataloguedShard> shards)
    : shards_(std::move(shards)) {
  std::size_t count = 0;
  for (const CataloguedShard& shard : shards_) {
    first_.push_back(count);
    count += shard.catalogue->entries().size();
  }
  entries_.reserve(count);
  for (const CataloguedShard& shard : shards_) {
    for (Entry entry : shard.catalogue->entries()) {
      entry.header_offset += shard.begin;
      entry.data_offset += shard.begin;
      entries_.push_back(entry);
    }
    end_ = std::max(end_, shard.begin + shard.catalogue->end());
  }
  merge_metadata();
  merge_digests();
  merge_chunk_digests();
}

void ShardedCatalogue::merge_metadata() {
  std::map<std::string_view, std::size_t> places;
  std::vector<bool> differs;
  std::vector<MetadataPair> merged;
  for (const CataloguedShard& shard : shards_) {
    for (const auto& [key, value] : shard.catalogue->metadata()) {
      const auto [known, is_new] = places.emplace(key, merged.size());
      if (is_new) {
        merged.emplace_back(key, value);
        differs.push_back(false);
      } else if (merged[known->second].second != value) {
        differs[known->second] = true;
      }
    }
  }
  for (std::size_t i = 0; i < merged.size(); ++i) {
    if (!differs[i]) metadata_.push_back(merged[i]);
  }
  empty_metadata_ = metadata_.empty() && std::ranges::any_of(shards_, [](const auto& shard) {
                      return shard.catalogue->has_metadata();
                    });
}

// The model keeps digests if all of its shards do.
void ShardedCatalogue::merge_digests() {
  for (const CataloguedShard& shard : shards_) {
    const ConstBytes digests = shard.catalogue->data_digests();
    if (digests.empty() && !shard.catalogue->entries().empty()) return;
  }
  for (const CataloguedShard& shard : shards_) {
    const ConstBytes digests = shard.catalogue->data_digests();
    digests_.insert(digests_.end(), digests.begin(), digests.end());
  }
  data_digests_ = digests_;
}

// It keeps digests of chunks if all of its shards do, and have chunks of one size and hash.
void ShardedCatalogue::merge_chunk_digests() {
  if (shards_.empty()) return;
  const ChunkDigests& first = shards_.front().catalogue->chunk_digests();
  const std::uint64_t size = first.chunk_size();
  for (const CataloguedShard& shard : shards_) {
    const ChunkDigests& own = shard.catalogue->chunk_digests();
    if (own.chunk_size() != size || own.hash() != first.hash()) return;
  }
  if (size == 0) return;
  for (const CataloguedShard& shard : shards_) {
    const ConstBytes digests = shard.catalogue->chunk_digests().all();
    chunks_.insert(chunks_.end(), digests.begin(), digests.end());
  }
  chunk_digests_ = {first.hash(), size, {}, chunks_, first_chunks(entries_, size)};
}

FormatInfo ShardedCatalogue::info() const {
  return {Format::Safetensors, 0, 0, end_, entries_.size()};
}

TensorDetails ShardedCatalogue::details(std::size_t entry, Bytes header,
                                        const FileLocation& location) const {
  const auto shard = std::ranges::upper_bound(first_, entry) - first_.begin() - 1;
  return shards_[static_cast<std::size_t>(shard)].catalogue->details(
      entry - first_[static_cast<std::size_t>(shard)], header, location);
}

}  // namespace tensorizer
