// What libcurl's errors mean for a request.
#pragma once

#include <curl/curl.h>

#include <string_view>

#include "io/http/connection.h"

namespace tensorizer {

// `detail`: libcurl's own words, or empty.
HttpFailure failure_of(CURLcode code, std::string_view detail);

}  // namespace tensorizer
