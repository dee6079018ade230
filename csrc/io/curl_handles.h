// The handles of libcurl that one connection consists of.
#pragma once

#include <curl/curl.h>
#include <unistd.h>

#include <memory>

#include "io/curl_share.h"

namespace tensorizer {

// Not thread-safe. A child of fork() may only destroy the handles of its parent, which leaks them:
// libcurl would end the TLS session with the server over the parent's connection.
class CurlHandles {
 public:
  explicit CurlHandles(std::shared_ptr<CurlShare> share);
  ~CurlHandles();
  CurlHandles(const CurlHandles&) = delete;
  CurlHandles& operator=(const CurlHandles&) = delete;

  CURL* easy() const noexcept { return easy_; }
  // Returns false in a child of fork(), for the handles of its parent.
  bool are_ours() const noexcept { return process_ == getpid(); }

  // Start and stop the transfer of the easy handle.
  void start();
  void stop() noexcept;
  // Runs the transfer as far as possible without blocking. Returns false at its end.
  bool run();
  // Returns the result of a transfer that has ended.
  CURLcode result();
  // Blocks until the transfer can go on, for at most kPollInterval.
  void wait();
  // Closes the connection. The handles must not be used any more.
  void close() noexcept;

 private:
  const pid_t process_ = getpid();
  std::shared_ptr<CurlShare> share_;
  CURL* easy_;
  CURLM* multi_;
};

}  // namespace tensorizer
