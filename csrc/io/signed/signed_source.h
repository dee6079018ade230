// Gives only bytes that somebody has signed.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
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
  std::string root{};                 // the digest of the model
};

// Returns the shards, none larger than the file: sums with the largest sizes that a bundle may name
// would overflow.
SignedShards within_file(SignedShards shards);

// Feeds each message its bytes, side by side.
void hash_together(std::span<Sha256> messages, std::span<const std::vector<Bytes>> parts);

// Sets the digests of shards whose bytes the pieces are, one after another.
void hash_shards(std::span<const Bytes> pieces, std::uint64_t shard_size,
                 std::span<Sha256Digest> digests);

// Throws HashMismatch for a file that has not as many bytes as were signed.
void check_size(const Source& file, std::uint64_t expected, const std::string& signer);

// Throws HashMismatch for bytes, from `begin` to `end` of a file, that are not those that were
// signed.
[[noreturn]] void throw_other_bytes(const Source& file, std::uint64_t begin, std::uint64_t end,
                                    ConstBytes found, ConstBytes expected,
                                    const std::string& signer);

// Reads whole shards of another source, and checks them before it gives any byte of them. A shard
// that a read takes in part stays in memory for the reads of its other parts.
class SignedSource final : public KeepingSource {
 public:
  // Throws HashMismatch unless the file has the size that was signed.
  SignedSource(std::shared_ptr<Source> file, SignedShards shards);

  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override;
  std::optional<std::string> signed_root() const override { return shards_.root; }
  // Bytes that read() gave have been compared already.
  bool read_anew(std::uint64_t, Bytes, Cancel&) override { return false; }
  std::optional<FileIdentity> identity() const override { return file_->identity(); }
  bool reads(const FileIdentity& file) const override { return file_->reads(file); }
  std::uint64_t block() const override { return file_->block(); }
  ReadHints hints(std::uint64_t offset, std::uint64_t length) override;

 private:
  void read_distinct(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override;

  // A shard that several reads use.
  struct Shared {
    enum class State : std::uint8_t { Arriving, Checked, Failed };
    State state = State::Arriving;
    std::vector<std::byte> bytes;
  };
  // A shard of which a read takes a part.
  struct Edge {
    std::uint64_t number;
    std::shared_ptr<Shared> shard;
    bool is_mine;  // the caller fetches it
  };

  std::uint64_t end_of(std::uint64_t shard) const;
  void fill(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel);
  Edge claim(std::uint64_t number);
  void fetch(std::uint64_t offset, std::span<const Bytes> pieces, std::span<Edge> edges,
             Cancel& cancel);
  void publish(std::span<Edge> edges, Shared::State state);
  void check(std::uint64_t first, std::span<const Bytes> pieces, Cancel& cancel);

  const SignedShards shards_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, std::shared_ptr<Shared>> shared_;
  std::deque<std::uint64_t> checked_;  // numbers of shared shards, the oldest first
};

}  // namespace tensorizer
