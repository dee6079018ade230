// Bytes of a file that are fetched before they are loaded, because the program has said that it
// will load them.
//
// Those of a local file go to the page cache. Those of any other file are kept in memory until they
// are loaded, or until others need the room.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "engine/move.h"
#include "io/source.h"

namespace tensorizer {

// Thread-safe.
class Prefetched : public std::enable_shared_from_this<Prefetched> {
 public:
  struct Span {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;

    std::uint64_t size() const { return end - begin; }
  };

  // Keeps at most `most` bytes, among them those of loads that have taken them.
  Prefetched(std::shared_ptr<Source> source, std::uint64_t most)
      : source_(std::move(source)), most_(most) {}

  // Fetches spans, which do not overlap and are in the order of the file, and returns when they are
  // there, whoever has fetched them. Drops the oldest others if there is no room. Throws
  // Error(InvalidArgument) if they are more than `most` bytes, or if the source can be read only
  // once, and the errors of the source.
  void fetch(const std::vector<Span>& spans, Progress& progress, Cancel& cancel);

  // Returns the source for a load of these bytes: the file, with all spans in memory that have any
  // of them. Those that are loaded in whole are not kept any longer. Blocks while they are on their
  // way. Null if there are none.
  std::shared_ptr<Source> take(std::span<const Span> wanted, Cancel& cancel);

  // Returns whether bytes are in memory, or on their way there.
  bool keeps_any() const;

 private:
  enum class State : std::uint8_t { Waiting, Coming, Here, Dropped, Failed };
  struct Unit {
    Span span;
    std::uint64_t age;  // a number that counts up
    // Whose fetch brings it. One that a parent process had started before it forked never ends in
    // this process; one of this thread, which called a handler that loads, cannot go on before the
    // handler returns.
    std::thread::id thread;
    pid_t process;
    std::size_t reads_left = 0;
    State state = State::Waiting;
    std::unique_ptr<std::byte[]> memory{};
  };
  using UnitPointer = std::shared_ptr<Unit>;
  // One read: of units that lie side by side, or of a part of one.
  struct Read {
    std::vector<UnitPointer> units;
    Span part;
  };
  class Mixed;

  // Units for the spans of a fetch.
  struct Added {
    std::vector<UnitPointer> own;
    std::vector<UnitPointer> of_others;  // which are on their way already
  };

  // Blocks until there is room.
  Added add(const std::vector<Span>& spans, Cancel& cancel);
  void bring_all(std::span<const UnitPointer> units, Cancel& cancel);
  static std::vector<Read> plan(std::span<const UnitPointer> units, const ReadHints& hints);
  void bring(const Read& read, int most_reads, Cancel& cancel);
  // Blocks until no unit is on its way, and returns the spans of those that failed.
  std::vector<Span> await(std::span<const UnitPointer> units, Cancel& cancel);

  // The mutex must be locked for the methods below.

  bool is_on_its_way(const Unit& unit) const;
  // Unlocks the mutex, and blocks until something has changed.
  void wait(std::unique_lock<std::mutex>& lock, Cancel& cancel);

  // Returns the units that have any of these bytes.
  std::vector<UnitPointer> find(std::span<const Span> wanted) const;
  void drop(const UnitPointer& unit, State state = State::Dropped);

  const std::shared_ptr<Source> source_;
  const std::uint64_t most_;
  mutable std::mutex mutex_;  // guards what follows, and the units
  std::condition_variable changed_;
  std::map<std::uint64_t, UnitPointer> units_;  // by the begin of their spans
  std::uint64_t kept_ = 0;                      // bytes of all units
  std::uint64_t taken_ = 0;                     // bytes of units that loads have taken
  std::uint64_t next_age_ = 0;
  int reading_ = 0;            // reads of all fetches that run
  pid_t reading_process_ = 0;  // which began them
};

}  // namespace tensorizer
