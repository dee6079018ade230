// Makes few large reads of accesses to a file that follow one another.
//
// The first access reads what it asks for and nothing else, and so does one that jumps elsewhere.
// One that goes on where the last one ended, with a small gap or none, reads ahead: sixteen times
// as much as was passed in order so far, up to a limit, in as many reads at once as pay for the
// source. Going backwards reads ahead as well, from the third access on. What was read ahead is
// held until accesses have passed it or jump.
//
// Safe from any thread; accesses that are in order are best made by one. Nothing is locked while
// bytes are fetched, and threads end with the call.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/bytes.h"
#include "base/cancel.h"
#include "io/source.h"

namespace tensorizer {

class ReadAhead {
 public:
  // Nothing is fetched at or behind `end`, and `most` bytes are held.
  ReadAhead(std::shared_ptr<Source> source, std::uint64_t end, std::uint64_t most);

  const std::shared_ptr<Source>& source() const { return source_; }

  // Where whoever is about to read from `begin` to `end` finds that: in what was read ahead, or in
  // the source itself. `at_once`: whether several reads may run at the same time.
  std::shared_ptr<Source> source_for(std::uint64_t begin, std::uint64_t end, bool at_once,
                                     Cancel& cancel);

  // Fills as much of `out` as there is from `offset` on, and says how much that was: less only at
  // the end, and where the source has a gap.
  std::size_t read(std::uint64_t offset, Bytes out, Cancel& cancel);

 private:
  struct Span {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;

    std::uint64_t size() const { return end - begin; }
    bool covers(const Span& other) const { return begin <= other.begin && other.end <= end; }
  };
  class Window;
  struct Fetch {
    Span span;
    std::thread::id thread;
    pid_t process;
  };

  // What is held of a span, after it was fetched where accesses are in order; null where the caller
  // reads it himself.
  std::shared_ptr<Window> hold(Span wanted, bool at_once, Cancel& cancel);
  // The next three under the mutex.
  bool goes_on(Span wanted);
  std::shared_ptr<Window> take_held(Span wanted);
  std::optional<Span> plan(Span wanted) const;

  std::shared_ptr<Window> fetch_window(Span span, std::shared_ptr<Window> before, bool at_once,
                                       Cancel& cancel);
  std::size_t fetch(std::uint64_t offset, Bytes out, bool at_once, Cancel& cancel);
  std::size_t fetch_at_once(std::uint64_t offset, Bytes out, std::uint64_t piece, int reads,
                            Cancel& cancel);

  const std::shared_ptr<Source> source_;
  const std::uint64_t end_;
  const std::uint64_t most_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable fetched_;
  Span last_;
  std::uint64_t passed_ = 0;  // in order, up to the last access, gaps included
  bool backwards_ = false;
  std::shared_ptr<Window> held_;
  std::optional<Fetch> fetch_;  // that is running
};

}  // namespace tensorizer
