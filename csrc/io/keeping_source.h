// A base of sources that keep, hash or check the bytes that pass.
#pragma once

#include <span>

#include "io/source.h"

namespace tensorizer {

// Gives a derived class pieces that share no memory.
class KeepingSource : public ForwardingSource {
 public:
  using ForwardingSource::ForwardingSource;

  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) final;

 protected:
  // Does what read() does.
  virtual void read_distinct(std::uint64_t offset, std::span<const Bytes> pieces,
                             Cancel& cancel) = 0;
};

}  // namespace tensorizer
