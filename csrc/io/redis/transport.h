// Sends and receives bytes over a connection to a Redis server, which libcurl opens.
#pragma once

#include <curl/curl.h>
#include <sys/uio.h>

#include <array>
#include <memory>
#include <span>
#include <string>

#include "base/cancel.h"
#include "io/curl.h"
#include "io/curl_handles.h"
#include "io/redis/address.h"

namespace tensorizer {

// Not thread-safe: one thread at a time. A broken connection throws TemporaryError. After any error
// the connection must not be used. A child of fork() may only destroy the connections of its
// parent, which does not affect them in the parent.
class RedisTransport {
 public:
  // Connects within `timeout` seconds. Throws within kPollInterval of a cancel. Keeps a reference
  // to the address.
  RedisTransport(const RedisAddress& address, const TlsOptions& tls, double timeout,
                 std::shared_ptr<CurlShare> share, Cancel& cancel);
  ~RedisTransport();
  RedisTransport(const RedisTransport&) = delete;
  RedisTransport& operator=(const RedisTransport&) = delete;

  // Returns how long connecting took.
  const ConnectTimes& times() const noexcept { return times_; }

  // Receive into, or send from, the vectors without blocking, beginning with the first one. Return
  // the number of bytes moved. If it is 0, the caller must wait for POLLIN or POLLOUT on the
  // descriptor, for at most kPollInterval. Bytes that send() did not take must be passed again.
  std::size_t receive(std::span<iovec> vectors);
  std::size_t send(std::span<iovec> vectors);
  // Returns the descriptor, for poll().
  int descriptor() const noexcept { return socket_; }

  // Closes the connection at once, and discards bytes that have not left this machine.
  void drop() noexcept;

 private:
  void connect(Cancel& cancel);
  std::size_t receive_tls(iovec vector);
  std::size_t send_tls(iovec vector);
  [[noreturn]] void throw_not_connected(CURLcode code) const;
  [[noreturn]] void throw_broken(int system_errno) const;
  [[noreturn]] void throw_tls_broken(CURLcode code) const;

  const RedisAddress& address_;
  std::array<char, CURL_ERROR_SIZE> error_{};
  CurlHandles handles_;
  curl_socket_t socket_ = CURL_SOCKET_BAD;
  ConnectTimes times_;
  bool has_received_ = false;
};

}  // namespace tensorizer
