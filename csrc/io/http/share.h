// The caches and statistics that all connections of one HttpClient share.
#pragma once

#include <mutex>

#include "io/curl_share.h"
#include "io/source.h"

namespace tensorizer {

// Thread-safe.
class HttpShare {
 public:
  CurlShare& curl() noexcept { return curl_; }

  // Adds the statistics of a request that has ended.
  void count(CURL* easy) noexcept;
  void count_retry();
  SourceStats stats() const;

 private:
  CurlShare curl_;
  mutable std::mutex stats_mutex_;
  SourceStats stats_;
};

}  // namespace tensorizer
