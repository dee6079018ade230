#include "io/http/easy.h"

#include <algorithm>
#include <string>

#include "tensorizer_ops/version.h"

namespace tensorizer {

namespace {

// The buffer of a connection. Its bytes are copied on while they are in the core's cache: with
// several MiB, which libcurl would accept, 16 connections load an eighth slower.
constexpr long kBuffer = 512 << 10;
// The least that libcurl accepts for what it receives, and for what it sends.
constexpr long kSmallestBuffer = 1 << 10;
constexpr long kSmallestUpload = 16 << 10;

// libcurl fills the buffer up to a hundred times in a row: with a limit, that should not take much
// longer than the wait that follows.
long buffer_for(std::uint64_t bandwidth) {
  if (bandwidth == 0) return kBuffer;
  return static_cast<long>(std::clamp<std::uint64_t>(bandwidth / 1000, kSmallestBuffer, kBuffer));
}

}  // namespace

void set_options(CURL* easy, const HttpOptions& options) {
  set_connecting(easy, options.tls, options.connect_timeout);
  set(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  // Basic authentication is sent at once; any other scheme costs each request another round trip.
  set(easy, CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BASIC));
  const long buffer = buffer_for(options.max_bandwidth);
  set(easy, CURLOPT_BUFFERSIZE, buffer);
  set(easy, CURLOPT_UPLOAD_BUFFERSIZE, std::max(buffer, kSmallestUpload));
  set(easy, CURLOPT_USERAGENT, ("tensorizer_ops/" + std::string(kVersion)).c_str());
  if (!options.http2) {
    set(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  }
}

}  // namespace tensorizer
