// Files on web servers.
#pragma once

#include <memory>
#include <string_view>

#include "base/cancel.h"
#include "io/http_place.h"
#include "io/options.h"
#include "io/source.h"

namespace tensorizer {

// Opens a file on a web server.
std::unique_ptr<Source> http_source(std::unique_ptr<HttpPlace> place, const HttpOptions& options,
                                    Cancel& cancel);

// Whether a header of this value would end where it should.
bool is_header_value(std::string_view value);

}  // namespace tensorizer
