// Opens files on web servers; see docs/remote.md.
#pragma once

#include <memory>
#include <string>

#include "base/cancel.h"
#include "io/http/client.h"
#include "io/options.h"
#include "io/place_kind.h"
#include "io/sink.h"
#include "io/source.h"

namespace tensorizer {

extern const PlaceKind web_servers;  // http:// and https://

// Opens the file of an endpoint.
std::unique_ptr<Source> http_source(HttpAccess access, const SourceOptions& options,
                                    Cancel& cancel);

// Returns a sequential sink, which saves by one PUT whose body is streamed.
std::unique_ptr<Sink> http_sink(HttpAccess access);

}  // namespace tensorizer
