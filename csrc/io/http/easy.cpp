#include "io/http/easy.h"

#include <algorithm>
#include <string>

#include "tensorizer_ops/version.h"

namespace tensorizer {

namespace {

// The buffer of a connection. Its bytes are copied on while they are in the core's cache: with
// several MiB, which libcurl would accept, 16 connections load an eighth slower.
constexpr long kBuffer = 512 << 10;

}  // namespace

void set_options(CURL* easy, const HttpOptions& options) {
  set_connecting(easy, options.tls, options.connect_timeout);
  set(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  // Basic authentication is sent at once; any other scheme costs each request another round trip.
  set(easy, CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BASIC));
  set(easy, CURLOPT_BUFFERSIZE, kBuffer);
  set(easy, CURLOPT_UPLOAD_BUFFERSIZE, kBuffer);
  set(easy, CURLOPT_USERAGENT, ("tensorizer_ops/" + std::string(kVersion)).c_str());
  if (!options.http2) {
    set(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  }
  if (options.max_bandwidth > 0) {
    const std::uint64_t share =
        std::max<std::uint64_t>(options.max_bandwidth / options.connections, 1);
    set(easy, CURLOPT_MAX_RECV_SPEED_LARGE, static_cast<curl_off_t>(share));
    set(easy, CURLOPT_MAX_SEND_SPEED_LARGE, static_cast<curl_off_t>(share));
  }
}

}  // namespace tensorizer
