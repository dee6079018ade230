// Reads a file ahead: turns consecutive small accesses into few large reads.
//
// The first access, and each access that jumps elsewhere, reads only the bytes that it asks for. An
// access that begins where the last one ended, or after a small gap, reads ahead: sixteen times the
// bytes that were accessed in order so far, up to a limit, in as many concurrent reads as the
// source hints. Backward accesses read ahead from the third one on. Bytes that were read ahead are
// held until accesses have passed them or jump.
//
// Thread-safe, but one sequence of accesses should come from one thread. No lock is held while
// bytes are fetched, and the threads that fetch end with the call.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "base/bytes.h"
#include "base/cancel.h"
#include "base/gate.h"
#include "engine/open/span.h"
#include "io/source.h"

namespace tensorizer {

class ReadAhead {
 public:
  // Fetches no byte at or behind the offset `end`, and holds at most `most` bytes.
  ReadAhead(std::shared_ptr<Source> source, std::uint64_t end, std::uint64_t most);

  const std::shared_ptr<Source>& source() const { return source_; }

  // Says that the caller needs no byte from `offset` on: none of these is read ahead.
  void need_until(std::uint64_t offset);

  // Returns the source for a caller that is about to read from `begin` to `end`: memory that holds
  // these bytes, which this call may read ahead, or the file's source. `at_once` says whether
  // several reads may run at the same time.
  std::shared_ptr<Source> source_for(std::uint64_t begin, std::uint64_t end, bool at_once,
                                     Cancel& cancel);

  // Fills `out` with the bytes from `offset` on and returns how many there were: less than asked
  // for only at the end of the file, or if the source has a gap.
  std::size_t read(std::uint64_t offset, Bytes out, Cancel& cancel);

 private:
  class Window;
  class Rest;
  struct Fetch {
    Span span;
    Doer doer;
  };

  // Returns a window that covers `wanted`, and fetches it if accesses are in order. Returns one
  // that covers the beginning, or null, if the caller has to read the rest from the source.
  std::shared_ptr<Window> hold(Span wanted, bool at_once, Cancel& cancel);
  // The mutex must be locked for the next three methods.

  // Returns whether an access continues the one before it, and remembers it as the last one.
  bool goes_on(Span wanted);
  // Returns the held window if it covers `wanted`, and holds it no longer if this reaches its end.
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
  std::uint64_t needed_;  // the end of what is read ahead
  Span last_;
  std::uint64_t passed_ = 0;  // bytes accessed in order until now, gaps included
  bool backwards_ = false;
  std::shared_ptr<Window> held_;
  std::optional<Fetch> fetch_;  // the one that is running
};

}  // namespace tensorizer
