// Sources and sinks that a host has made, on their way to an op: an op takes numbers, and no
// objects of the host.
#pragma once

#include <cstdint>
#include <memory>

#include "io/sink.h"
#include "io/source.h"

namespace tensorizer {

// Keeps a source or a sink until an op takes it, or until this ends.
class HandedOver {
 public:
  explicit HandedOver(std::shared_ptr<Source> source);
  explicit HandedOver(std::unique_ptr<Sink> sink);
  ~HandedOver();
  HandedOver(const HandedOver&) = delete;
  HandedOver& operator=(const HandedOver&) = delete;

  std::int64_t number() const noexcept { return number_; }

 private:
  const std::int64_t number_;
};

// Return what has this number, once. Throw Error(InvalidArgument) if there is none.
std::shared_ptr<Source> take_source(std::int64_t number);
std::unique_ptr<Sink> take_sink(std::int64_t number);

}  // namespace tensorizer
