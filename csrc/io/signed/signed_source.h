// Gives only bytes that somebody has signed.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "base/gate.h"
#include "io/signed/shards_source.h"

namespace tensorizer {

// Reads whole shards of another source, and checks them before it gives any byte of them. A shard
// that a read takes in part stays in memory for the reads of its other parts.
class SignedSource final : public ShardsSource {
 public:
  using ShardsSource::ShardsSource;

  ReadHints hints(std::uint64_t offset, std::uint64_t length) override;

 private:
  void read_distinct(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override;

  // A shard that several reads use.
  struct Shared {
    enum class State : std::uint8_t { Arriving, Checked, Failed };
    Doer doer;
    State state = State::Arriving;
    std::vector<std::byte> bytes{};
  };
  // A shard of which a read takes a part.
  struct Edge {
    std::uint64_t number;
    std::shared_ptr<Shared> shard;
    bool is_mine;  // the caller fetches it
  };

  Edge claim(std::uint64_t number, const Cancel& cancel);
  void fetch(std::uint64_t offset, std::span<const Bytes> pieces, std::span<Edge> edges,
             Cancel& cancel);
  void publish(std::span<Edge> edges, Shared::State state);
  void check(std::uint64_t first, std::span<const Bytes> pieces, Cancel& cancel);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, std::shared_ptr<Shared>> shared_;
  std::deque<std::uint64_t> checked_;  // numbers of shared shards, the oldest first
};

}  // namespace tensorizer
