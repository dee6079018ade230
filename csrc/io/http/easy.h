// The settings of libcurl's handles.
#pragma once

#include <curl/curl.h>

#include <string>

#include "base/error.h"
#include "io/http/options.h"

namespace tensorizer {

template <typename Value>
void set(CURL* handle, CURLoption option, Value value) {
  if (curl_easy_setopt(handle, option, value) != CURLE_OK) {
    throw Error(ErrorKind::Internal, "libcurl refuses option " + std::to_string(option));
  }
}

// What is the same for all requests.
void set_options(CURL* easy, const HttpOptions& options);

}  // namespace tensorizer
