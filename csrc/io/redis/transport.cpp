#include "io/redis/transport.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "io/retry.h"

namespace tensorizer {

namespace {

// The bytes passed to TLS at once: one record, so that progress shows on a slow connection.
constexpr std::size_t kTlsRecord = 16 << 10;
constexpr const char* kOtherScheme =
    ": rediss:// is for servers that speak TLS, and redis:// for others";

}  // namespace

RedisTransport::RedisTransport(const RedisAddress& address, const TlsOptions& tls, double timeout,
                               std::shared_ptr<CurlShare> share, Cancel& cancel)
    : address_(address), handles_(std::move(share)) {
  CURL* const easy = handles_.easy();
  set_connecting(easy, tls, timeout);
  set(easy, CURLOPT_ERRORBUFFER, error_.data());
  set(easy, CURLOPT_URL, address.url.c_str());
  set(easy, CURLOPT_CONNECT_ONLY, 1L);
  set(easy, CURLOPT_SSL_ENABLE_ALPN, 0L);
  set(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  // Ignore the proxies of the environment, which are for HTTP.
  set(easy, CURLOPT_PROXY, "");
  if (!address.socket.empty()) set(easy, CURLOPT_UNIX_SOCKET_PATH, address.socket.c_str());
  connect(cancel);
}

RedisTransport::~RedisTransport() {
  if (!handles_.are_ours() && socket_ != CURL_SOCKET_BAD) ::close(socket_);
}

void RedisTransport::connect(Cancel& cancel) {
  handles_.start();
  while (handles_.run()) {
    cancel.check();
    handles_.wait();
  }
  const CURLcode code = handles_.result();
  if (code != CURLE_OK) throw_not_connected(code);
  curl_easy_getinfo(handles_.easy(), CURLINFO_ACTIVESOCKET, &socket_);
  if (socket_ == CURL_SOCKET_BAD) throw_broken(0);
  times_ = connect_times(handles_.easy());
  // libcurl keeps its first message, which may be about a failure that it recovered from.
  error_[0] = '\0';
}

void RedisTransport::throw_not_connected(CURLcode code) const {
  long system_errno = 0;
  curl_easy_getinfo(handles_.easy(), CURLINFO_OS_ERRNO, &system_errno);
  const ConnectionFailure failure = failure_of(code, error_.data());
  const int number = code == CURLE_COULDNT_CONNECT ? static_cast<int>(system_errno) : 0;
  std::string what = "cannot connect to the server of " + address_.label + ": " +
                     (number != 0 ? std::strerror(number) : quote(failure.what, 400));
  if (failure.tls_mismatch) what += kOtherScheme;
  const ErrorKind kind = failure.is_argument ? ErrorKind::InvalidArgument
                         : failure.timed_out ? ErrorKind::TimedOut
                                             : ErrorKind::Unavailable;
  if (failure.temporary) throw TemporaryError(kind, what, number);
  throw Error(kind, what, number);
}

std::size_t RedisTransport::receive(std::span<iovec> vectors) {
  if (address_.tls) return receive_tls(vectors.front());
  for (;;) {
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = vectors.size();
    const ssize_t moved = recvmsg(socket_, &message, MSG_DONTWAIT);
    if (moved > 0) {
      has_received_ = true;
      return static_cast<std::size_t>(moved);
    }
    if (moved == 0) throw_broken(0);
    if (errno == EAGAIN) return 0;
    if (errno != EINTR) throw_broken(errno);
  }
}

std::size_t RedisTransport::send(std::span<iovec> vectors) {
  if (address_.tls) return send_tls(vectors.front());
  for (;;) {
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = vectors.size();
    const ssize_t moved = sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (moved >= 0) return static_cast<std::size_t>(moved);
    if (errno == EAGAIN) return 0;
    if (errno != EINTR) throw_broken(errno);
  }
}

std::size_t RedisTransport::receive_tls(iovec vector) {
  std::size_t moved = 0;
  const CURLcode code = curl_easy_recv(handles_.easy(), vector.iov_base, vector.iov_len, &moved);
  if (code == CURLE_AGAIN) return 0;
  if (code != CURLE_OK) throw_tls_broken(code);
  if (moved == 0) throw_broken(0);
  has_received_ = true;
  return moved;
}

// If the socket did not take the whole record, TLS continues it when the same bytes are passed
// again.
std::size_t RedisTransport::send_tls(iovec vector) {
  std::size_t moved = 0;
  const CURLcode code = curl_easy_send(handles_.easy(), vector.iov_base,
                                       std::min(vector.iov_len, kTlsRecord), &moved);
  if (code == CURLE_AGAIN) return 0;
  if (code != CURLE_OK) throw_tls_broken(code);
  return moved;
}

void RedisTransport::drop() noexcept {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  socket_ = CURL_SOCKET_BAD;
  handles_.close();
}

void RedisTransport::throw_broken(int system_errno) const {
  // A server that expects TLS takes a command for nonsense, and closes the connection.
  const bool may_want_tls = !has_received_ && !address_.tls && address_.socket.empty();
  throw TemporaryError(
      ErrorKind::Unavailable,
      (system_errno == 0 ? "the server of " + address_.label + " closed the connection"
                         : "the connection to the server of " + address_.label +
                               " broke: " + std::strerror(system_errno)) +
          (may_want_tls ? kOtherScheme : ""),
      system_errno);
}

void RedisTransport::throw_tls_broken(CURLcode code) const {
  const ConnectionFailure failure = failure_of(code, error_.data());
  const std::string what = quote(failure.what, 400);
  if (failure.temporary) {
    const char* const hint =
        has_received_ ? "" : ": it may want another client certificate ('client_cert')";
    throw TemporaryError(ErrorKind::Unavailable, "the connection to the server of " +
                                                     address_.label + " broke: " + what + hint);
  }
  throw Error(ErrorKind::Unavailable,
              "the server of " + address_.label +
                  " refuses the client certificate, or wants one (options 'client_cert' and "
                  "'client_key'): " +
                  what);
}

}  // namespace tensorizer
