// The settings of libcurl's handles for web servers.
#pragma once

#include "io/curl.h"
#include "io/http/options.h"

namespace tensorizer {

// What is the same for all requests.
void set_options(CURL* easy, const HttpOptions& options);

}  // namespace tensorizer
