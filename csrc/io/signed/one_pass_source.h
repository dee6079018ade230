// Hashes a file that was signed in whole, or in large parts, while it is read.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "base/error.h"
#include "base/gate.h"
#include "codec/sha256.h"
#include "io/signed/shards_source.h"

namespace tensorizer {

// Gives bytes before they are known to be signed, and hashes them in the order of the file: all
// before the *frontier* have been hashed. A read behind it is held up, with its bytes, until the
// frontier has come there; a read before it must find the bytes that were hashed. What nobody
// reads, a read that waits for it does, or confirm().
class OnePassSource final : public ShardsSource {
 public:
  using ShardsSource::ShardsSource;

  bool checks_at_end() const override;
  // Hashes what is left. Throws HashMismatch if the file is not the one that was signed. Every read
  // throws it from then on.
  void confirm(Cancel& cancel) override;
  ReadHints hints(std::uint64_t offset, std::uint64_t length) override;

 private:
  void read_distinct(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override;

  // Bytes that were hashed: the state of SHA-256 before them shows whether others have taken their
  // place, as safely as the digest of the file does.
  struct Block {
    std::uint64_t begin;
    std::uint64_t end;
    Sha256 before;
    Sha256Digest after;  // the digest from the beginning of the shard to `end`
  };
  struct Reading {
    std::uint64_t begin;
    std::uint64_t end;
    Doer doer;
  };
  using Lock = std::unique_lock<std::mutex>;

  // The mutex must be locked for the next five methods.
  void throw_if_refused() const;
  // Returns whether another thread hashes.
  bool is_hashing() const;
  // Returns whether a read is going on that brings the byte at the frontier, and that a job may
  // wait for.
  bool is_coming(const Cancel& job) const;
  // Returns where a read that wants bytes from `offset` on should begin.
  std::uint64_t begin_of_read(std::uint64_t offset) const;
  // Returns the end of the bytes at the frontier that no read brings.
  std::uint64_t end_of_gap() const;

  // These unlock the mutex while they wait, read or hash.
  void await(std::uint64_t offset, Lock& lock, Cancel& cancel);
  void fetch_next(Lock& lock, Cancel& cancel);
  // Calls `work`, which brings these bytes.
  template <typename Work>
  void bring(std::uint64_t begin, std::uint64_t end, Lock& lock, const Cancel& cancel,
             const Work& work);
  // Hashes bytes that begin at the frontier.
  void advance(std::span<const Bytes> pieces, Lock& lock, const Cancel& cancel);

  void hash(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel);
  void hash_next(std::span<const Bytes> pieces);
  void read_again(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel);

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::uint64_t frontier_ = 0;
  std::optional<Doer> hashing_;  // who moves the frontier
  Sha256 state_;                 // from the beginning of the shard to the frontier
  std::vector<Block> blocks_;    // of all bytes before the frontier
  std::list<Reading> readings_;
  std::set<std::thread::id> readers_;  // two of them, if there are several
  std::optional<Error> refused_;
};

}  // namespace tensorizer
