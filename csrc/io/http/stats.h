// Counts the requests of one HttpClient.
#pragma once

#include <mutex>

#include "io/curl.h"
#include "io/source.h"

namespace tensorizer {

// Thread-safe.
class HttpStats {
 public:
  // Adds the statistics of a request that has ended.
  void count(CURL* easy) noexcept;
  void count_retry();
  SourceStats so_far() const;
  // Returns true if any of these requests was answered.
  bool has_answers() const;

 private:
  mutable std::mutex mutex_;
  SourceStats stats_;
  bool has_answers_ = false;
};

}  // namespace tensorizer
