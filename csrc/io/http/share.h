// What all connections to one server share, with the account of what they did.
#pragma once

#include <mutex>

#include "io/curl_share.h"
#include "io/source.h"

namespace tensorizer {

// Any thread.
class HttpShare {
 public:
  CURLSH* handle() const noexcept { return curl_.handle(); }

  // Adds what a request took that has ended.
  void count(CURL* easy) noexcept;
  void count_retry();
  SourceStats stats() const;

 private:
  CurlShare curl_;
  mutable std::mutex stats_mutex_;
  SourceStats stats_;
};

}  // namespace tensorizer
