// The bytes to and from one Redis server. libcurl looks its name up and connects.
#pragma once

#include <curl/curl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <span>
#include <string>

#include "base/cancel.h"
#include "io/curl.h"
#include "io/curl_share.h"
#include "io/redis/address.h"

namespace tensorizer {

// One thread at a time. What breaks is a TemporaryError; after any error the connection is of no
// more use. A child of fork() may destroy what its parent opened, and nothing else: the parent's
// connection stays as it is.
class RedisTransport {
 public:
  // Connects, within `timeout` seconds, and ends within kPollInterval of a cancel. The address is
  // kept as a reference.
  RedisTransport(const RedisAddress& address, const TlsOptions& tls, double timeout,
                 std::shared_ptr<CurlShare> share, Cancel& cancel);
  ~RedisTransport();
  RedisTransport(const RedisTransport&) = delete;
  RedisTransport& operator=(const RedisTransport&) = delete;

  // How long connecting took.
  const ConnectTimes& times() const noexcept { return times_; }

  // Move what can be moved at once, into or out of the first of the vectors on, and return how many
  // bytes that was; 0 where the caller has to wait for POLLIN or POLLOUT on the descriptor, for
  // kPollInterval at most. What send() did not take has to be given again.
  std::size_t receive(std::span<iovec> vectors);
  std::size_t send(std::span<iovec> vectors);
  // For poll().
  int descriptor() const noexcept { return socket_; }

  // Closes the connection at once: what has not left this machine does not leave it any more.
  void drop() noexcept;

 private:
  void connect(Cancel& cancel);
  void close() noexcept;
  std::size_t receive_tls(iovec vector);
  std::size_t send_tls(iovec vector);
  [[noreturn]] void throw_not_connected(CURLcode code) const;
  [[noreturn]] void throw_broken(int system_errno) const;
  [[noreturn]] void throw_tls_broken(CURLcode code) const;

  const RedisAddress& address_;
  const pid_t process_ = getpid();
  std::shared_ptr<CurlShare> share_;
  CURL* easy_ = nullptr;
  CURLM* multi_ = nullptr;
  std::array<char, CURL_ERROR_SIZE> error_{};
  curl_socket_t socket_ = CURL_SOCKET_BAD;
  ConnectTimes times_;
  bool has_received_ = false;  // over TLS
};

}  // namespace tensorizer
