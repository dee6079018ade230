// Files on web servers.
#pragma once

#include <memory>
#include <string_view>

#include "base/cancel.h"
#include "io/options.h"
#include "io/source.h"

namespace tensorizer {

// An http:// or https:// URL; see docs/remote.md.
std::unique_ptr<Source> open_http_source(std::string_view url, const HttpOptions& options,
                                         Cancel& cancel);

// Whether a header of this value would end where it should.
bool is_header_value(std::string_view value);

}  // namespace tensorizer
