// The settings of libcurl handles for web servers.
#pragma once

#include "io/curl.h"
#include "io/http/options.h"

namespace tensorizer {

// Sets the options that are the same for all requests.
void set_options(CURL* easy, const HttpOptions& options);

}  // namespace tensorizer
