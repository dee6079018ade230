// What all connections to one server share: names that were looked up, TLS sessions, and the
// account of what they did.
#pragma once

#include <curl/curl.h>

#include <array>
#include <mutex>

#include "io/source.h"

namespace tensorizer {

// Any thread.
class HttpShare {
 public:
  HttpShare();
  ~HttpShare();
  HttpShare(const HttpShare&) = delete;
  HttpShare& operator=(const HttpShare&) = delete;

  CURLSH* handle() const noexcept { return handle_; }

  // Adds what a request took that has ended.
  void count(CURL* easy) noexcept;
  void count_retry();
  SourceStats stats() const;

 private:
  static void lock(CURL*, curl_lock_data data, curl_lock_access, void* self);
  static void unlock(CURL*, curl_lock_data data, void* self);

  std::array<std::mutex, CURL_LOCK_DATA_LAST> mutexes_;
  CURLSH* handle_;
  mutable std::mutex stats_mutex_;
  SourceStats stats_;
};

}  // namespace tensorizer
