// Counts what the loads of one reader did. Thread-safe.
#pragma once

#include <cstddef>
#include <mutex>

#include "engine/move/move.h"
#include "io/source.h"
#include "tensorizer_ops/reader.h"

namespace tensorizer {

class LoadCounters {
 public:
  // Adds a load that has ended. Logs where its time went if it sent requests to a server.
  void add(const Source& source, const Progress& progress, std::size_t tensors, double seconds);

  // Returns the counts together with the statistics of the source.
  LoadStats stats(const SourceStats& source) const;

 private:
  mutable std::mutex mutex_;  // guards the members below
  LoadStats stats_;           // without the statistics of the source
  SourceStats logged_;
};

}  // namespace tensorizer
