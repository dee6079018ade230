// The caches that the connections to one server share: host names that were looked up, and TLS
// sessions.
#pragma once

#include <curl/curl.h>

#include <array>
#include <mutex>

namespace tensorizer {

// Thread-safe. Must outlive the handles that it is set in. A child of fork() needs one of its own.
class CurlShare {
 public:
  CurlShare();
  ~CurlShare();
  CurlShare(const CurlShare&) = delete;
  CurlShare& operator=(const CurlShare&) = delete;

  CURLSH* handle() const noexcept { return handle_; }

 private:
  static void lock(CURL*, curl_lock_data data, curl_lock_access, void* self);
  static void unlock(CURL*, curl_lock_data data, void* self);

  std::array<std::mutex, CURL_LOCK_DATA_LAST> mutexes_;
  CURLSH* handle_;
};

}  // namespace tensorizer
