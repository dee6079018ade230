// Reads of any size, most of them in order, as file objects are read: made into few large ones.
//
// A read that goes on where the last one ended fetches more than was asked for, and more each time;
// one elsewhere little. What is fetched comes in as many reads at once as pay for the source, and
// what is asked for at once and is large goes straight into its place. Threads end with the call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/bytes.h"
#include "base/cancel.h"
#include "base/gate.h"
#include "io/source.h"

namespace tensorizer {

class ReadAhead {
 public:
  using Open = std::function<std::unique_ptr<Source>(Cancel& cancel)>;

  // Opens the source, and again where one that is sequential is read backwards. Nothing is fetched
  // at or behind `end`, and `most` bytes are held.
  ReadAhead(Open open, std::uint64_t end, std::uint64_t most, Cancel& cancel);

  const Source& source() const { return *source_; }

  // Fills as much of `out` as there is from `offset` on, and says how much that was: less only at
  // the end, and where the source has a gap. Any thread; one call at a time goes on. One on the
  // thread of another, as from a signal handler, throws Error(InvalidArgument).
  std::size_t read(std::uint64_t offset, Bytes out, Cancel& cancel);

 private:
  std::size_t take_held(std::uint64_t offset, Bytes out) const;
  std::size_t fetch(std::uint64_t offset, Bytes out, Cancel& cancel);
  std::size_t fetch_in_order(std::uint64_t offset, Bytes out, Cancel& cancel);
  std::size_t fetch_at_once(std::uint64_t offset, Bytes out, std::uint64_t piece, int reads,
                            Cancel& cancel);

  const Open open_;
  const std::uint64_t end_;
  const std::uint64_t most_;

  // Who is in uses what follows.
  Gate gate_{
      "this thread is reading from the stream already: what runs meanwhile, as a signal handler "
      "does, cannot read from it"};
  std::unique_ptr<Source> source_;
  std::uint64_t position_ = 0;  // of a sequential source
  std::uint64_t next_ = 0;      // where the last read ended
  std::uint64_t window_;        // what was fetched last, or would have been
  std::unique_ptr<std::byte[]> buffer_;
  std::uint64_t held_from_ = 0;
  std::size_t held_ = 0;
};

}  // namespace tensorizer
