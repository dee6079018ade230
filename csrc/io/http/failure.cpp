#include "io/http/failure.h"

namespace tensorizer {

namespace {

// libcurl quotes the whole URL of a proxy that it cannot use, with its password.
std::string without_quoted(std::string_view detail) {
  const std::size_t begin = detail.find('\'');
  if (begin == detail.npos || detail.find("roxy") > begin) return std::string(detail);
  return std::string(detail.substr(0, begin)) + "'...'";
}

// A handshake that was broken off, and not one that the two could not agree on: only of the latter
// the TLS library has an error of its own.
bool is_broken_off(std::string_view detail) {
  return detail.find("error:") == detail.npos || detail.find("unexpected eof") != detail.npos;
}

}  // namespace

HttpFailure failure_of(CURLcode code, std::string_view detail) {
  HttpFailure failure;
  failure.what = detail.empty() ? curl_easy_strerror(code) : without_quoted(detail);
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
      failure.timed_out = failure.temporary = true;
      break;
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_ENGINE_NOTFOUND:
    case CURLE_URL_MALFORMAT:
    case CURLE_COULDNT_RESOLVE_PROXY:
      failure.is_argument = true;
      break;
    // What another try would meet again.
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_PINNEDPUBKEYNOTMATCH:
    case CURLE_SSL_CLIENTCERT:
    case CURLE_OUT_OF_MEMORY:
      break;
    case CURLE_SSL_CONNECT_ERROR:
      failure.temporary = is_broken_off(detail);
      break;
    default:
      failure.temporary = true;
  }
  return failure;
}

}  // namespace tensorizer
