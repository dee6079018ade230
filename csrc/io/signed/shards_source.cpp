#include "io/signed/shards_source.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "codec/hmac.h"

namespace tensorizer {

namespace {

SignedShards within_file(SignedShards shards) {
  shards.shard_size = std::min(shards.shard_size, std::max<std::uint64_t>(shards.file_size, 1));
  return shards;
}

}  // namespace

void hash_together(std::span<Sha256> messages, std::span<const std::vector<Bytes>> parts) {
  std::vector<Sha256Update> updates;
  for (std::size_t round = 0; round == 0 || !updates.empty(); ++round) {
    updates.clear();
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (round < parts[i].size()) updates.push_back({&messages[i], parts[i][round]});
    }
    sha256_update(updates);
  }
}

void hash_shards(std::span<const Bytes> pieces, std::uint64_t shard_size,
                 std::span<Sha256Digest> digests) {
  const auto lanes = static_cast<std::size_t>(sha256_lanes());
  for (std::size_t first = 0; first < digests.size(); first += lanes) {
    const std::size_t count = std::min(lanes, digests.size() - first);
    std::vector<Sha256> hashes(count);
    std::vector<std::vector<Bytes>> parts(count);
    for (std::size_t i = 0; i < count; ++i) {
      parts[i] = part_of(pieces, (first + i) * shard_size, (first + i + 1) * shard_size);
    }
    hash_together(hashes, parts);
    for (std::size_t i = 0; i < count; ++i) digests[first + i] = hashes[i].finish();
  }
}

ShardsSource::ShardsSource(std::shared_ptr<Source> file, SignedShards shards)
    : KeepingSource(std::move(file)), shards_(within_file(std::move(shards))) {
  if (size_ != shards_.file_size) {
    throw Error(ErrorKind::HashMismatch, label() + ": it has " + std::to_string(size_) +
                                             " bytes, and " + shards_.signer + " signed " +
                                             std::to_string(shards_.file_size) +
                                             ": it is another version, or was changed");
  }
  if (size_ > 0) return;
  const Sha256Digest found = Sha256().finish();  // no read compares it
  if (!is_signed(0, found)) refuse(0, found);
}

std::uint64_t ShardsSource::end_of(std::uint64_t shard) const {
  return std::min((shard + 1) * shards_.shard_size, size_);
}

bool ShardsSource::is_signed(std::uint64_t shard, const Sha256Digest& found) const {
  return std::ranges::equal(found, digest_of(shard));
}

void ShardsSource::refuse(std::uint64_t shard, const Sha256Digest& found) const {
  throw Error(ErrorKind::HashMismatch,
              label() + ": its bytes from " + std::to_string(shard * shards_.shard_size) + " to " +
                  std::to_string(end_of(shard)) + " are not those that " + shards_.signer +
                  " signed: their SHA-256 is " + to_hex(found) + ", and should be " +
                  to_hex(digest_of(shard)) + ": they are damaged, or were changed");
}

ConstBytes ShardsSource::digest_of(std::uint64_t shard) const {
  return shards_.digests.subspan(shard * kSha256Size, kSha256Size);
}

}  // namespace tensorizer
