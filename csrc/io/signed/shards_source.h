// The base of sources whose bytes are compared with signed digests of shards.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "codec/sha256.h"
#include "io/keeping_source.h"

namespace tensorizer {

// The signed digests of a file, which is cut into shards from its first byte on.
struct SignedShards {
  std::uint64_t file_size;
  std::uint64_t shard_size;
  ConstBytes digests;                 // SHA-256, 32 bytes for each shard
  std::shared_ptr<const void> owner;  // of the digests
  std::string signer;                 // for messages
  std::string identity{};             // as Source::signed_as() returns it
};

// Feeds each message its bytes, side by side.
void hash_together(std::span<Sha256> messages, std::span<const std::vector<Bytes>> parts);

// Sets the digests of shards whose bytes the pieces are, one after another.
void hash_shards(std::span<const Bytes> pieces, std::uint64_t shard_size,
                 std::span<Sha256Digest> digests);

class ShardsSource : public KeepingSource {
 public:
  // Throws HashMismatch unless the file has the size that was signed, and the digest if it is
  // empty.
  ShardsSource(std::shared_ptr<Source> file, SignedShards shards);

  std::optional<std::string> signed_as() const override { return shards_.identity; }
  // Bytes that read() gave have been compared or hashed: others in their place would not be the
  // signed ones.
  bool read_anew(std::uint64_t, Bytes, Cancel&) override { return false; }

 protected:
  std::uint64_t end_of(std::uint64_t shard) const;
  bool is_signed(std::uint64_t shard, const Sha256Digest& found) const;
  // Throws HashMismatch for a shard that has another digest than was signed.
  [[noreturn]] void refuse(std::uint64_t shard, const Sha256Digest& found) const;

  // No shard is larger than the file: sums with the largest sizes that a bundle may name would
  // overflow.
  const SignedShards shards_;

 private:
  ConstBytes digest_of(std::uint64_t shard) const;
};

}  // namespace tensorizer
