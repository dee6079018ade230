// Fetches tensor data before it is loaded, when the program asks for that.
//
// Data of a local file goes to the page cache. All other data is kept in memory until it is loaded,
// or until later fetches need the room.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "base/gate.h"
#include "engine/move/move.h"
#include "engine/open/span.h"
#include "io/pages.h"
#include "io/source.h"

namespace tensorizer {

// Thread-safe.
class PrefetchCache : public std::enable_shared_from_this<PrefetchCache> {
 public:
  // Holds at most `most` bytes, including those that running loads have taken out.
  PrefetchCache(std::shared_ptr<Source> source, std::uint64_t most)
      : source_(std::move(source)), most_(most) {}

  // Fetches spans, which must not overlap and must be in the order of the file. Blocks until all
  // are fetched, by this call or by others. Evicts the oldest other spans if there is no room.
  // Throws Error(InvalidArgument) if the spans have more than `most` bytes, or if the source can be
  // read only once, and the errors of the source.
  void fetch(const std::vector<Span>& spans, Progress& progress, Cancel& cancel);

  // Returns a source for a load of these bytes, which reads from memory what was fetched, and the
  // rest from the file. Null if none of them were fetched. Blocks until running reads of these
  // bytes have ended. Spans that the load wants in whole leave the cache.
  std::shared_ptr<Source> source_for(std::span<const Span> wanted, Cancel& cancel);

  // Returns whether any bytes are in memory, or being fetched to it.
  bool has_any() const;

 private:
  enum class State : std::uint8_t { Queued, Reading, Ready, Evicted, Failed };
  // A span that is fetched and evicted as a whole.
  struct Unit {
    Span span;
    std::uint64_t age;  // of the newest fetch that asked for it: counts up
    Doer fetcher;
    std::size_t reads_left = 0;
    State state = State::Queued;
    std::unique_ptr<Pages> memory{};
  };
  using UnitPointer = std::shared_ptr<Unit>;
  // One read: of adjacent units, or of a part of a large unit.
  struct Read {
    std::vector<UnitPointer> units;
    Span part;
  };
  class CachedSource;

  // The units of a fetch.
  struct Added {
    std::vector<UnitPointer> own;
    std::vector<UnitPointer> others;  // known before this fetch
  };

  // Blocks until there is room.
  Added add(const std::vector<Span>& spans, Cancel& cancel);
  void read_units(std::span<const UnitPointer> units, Cancel& cancel);
  static std::vector<Read> plan(std::span<const UnitPointer> units, const ReadHints& hints);
  void read_into_units(const Read& read, int most_reads, Cancel& cancel);
  // Blocks until none of the units is loading, and returns the spans of those that failed.
  std::vector<Span> await(std::span<const UnitPointer> units, Cancel& cancel);

  // The mutex must be locked for the methods below.

  // In a forked child, forgets what its parent was doing.
  void forget_parent();
  // Returns whether a fetch that a job may wait for has yet to read the unit.
  bool is_loading(const Unit& unit, const Cancel& job) const;

  // Returns the units that overlap these spans.
  std::vector<UnitPointer> find(std::span<const Span> wanted) const;
  void evict(const UnitPointer& unit, State state = State::Evicted);

  const std::shared_ptr<Source> source_;
  const std::uint64_t most_;
  mutable std::mutex mutex_;  // guards what follows, and the units
  std::condition_variable changed_;
  std::map<std::uint64_t, UnitPointer> units_;  // by the begin of their spans
  std::uint64_t kept_ = 0;                      // bytes of all units in `units_`
  std::uint64_t taken_ = 0;                     // bytes of units that running loads have taken out
  std::uint64_t next_age_ = 0;
  int reading_ = 0;    // running reads of all fetches
  pid_t process_ = 0;  // to which these and what is taken out belong
};

}  // namespace tensorizer
