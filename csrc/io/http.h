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

}  // namespace tensorizer
