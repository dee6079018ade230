// A Sink that several processes write together: one of them shares it, and the others join.
//
// Each process calls begin() with the same sizes, and writes bytes that no other one writes. All
// that it writes is in the file after hand_in(). The process that shares it takes in what the
// others have handed in, and finishes the file. An abort() in any of them gives up the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "io/sink.h"

namespace tensorizer {

class SharedSink : public Sink {
 public:
  // Returns how the target is divided: the bytes between two multiples of it must come from one
  // process. 1 if there is no such rule. Called after begin().
  virtual std::uint64_t unit() const = 0;

  // Returns the text with which others open this sink (open_shared_sink() in io/places/open.h).
  // Called after begin(), once.
  virtual std::string share(Cancel& cancel) = 0;

  // Completes what this process writes, in place of finish(). Returns a text for take_in().
  virtual std::string hand_in(std::uint64_t body_size, Cancel& cancel) = 0;

  // Takes the text of another process, before finish().
  virtual void take_in(std::string_view handed_in) = 0;

  // Lets go of the file, which another process has finished.
  virtual void leave() noexcept = 0;
};

}  // namespace tensorizer
