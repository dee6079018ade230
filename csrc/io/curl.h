// Functions that all connections through libcurl share.
#pragma once

#include <curl/curl.h>

#include <string>
#include <string_view>

#include "base/error.h"
#include "io/tls_options.h"

namespace tensorizer {

template <typename Value>
void set(CURL* handle, CURLoption option, Value value) {
  if (curl_easy_setopt(handle, option, value) != CURLE_OK) {
    throw Error(ErrorKind::Internal, "libcurl refuses option " + std::to_string(option));
  }
}

// Sets the options of a handle for connecting, with TLS 1.2 or later where TLS is used. `timeout`:
// in seconds.
void set_connecting(CURL* easy, const TlsOptions& tls, double timeout);

// The seconds that each step of connecting took; 0 for a step that did not happen.
struct ConnectTimes {
  double lookup = 0;  // of the name
  double connect = 0;
  double tls = 0;
};
ConnectTimes connect_times(CURL* easy);
double seconds_of(CURL* easy, CURLINFO info);

// Why a connection failed, and whether a retry may succeed.
struct ConnectionFailure {
  std::string what;
  bool temporary = false;
  bool timed_out = false;
  bool is_argument = false;   // the caller's own files or options are wrong
  bool tls_mismatch = false;  // one side probably speaks TLS, and the other does not
};

// Explains an error of libcurl. `detail`: libcurl's own message, or empty.
ConnectionFailure failure_of(CURLcode code, std::string_view detail);

}  // namespace tensorizer
