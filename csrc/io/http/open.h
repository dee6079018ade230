// Files on web servers; see docs/remote.md.
#pragma once

#include <memory>
#include <string_view>

#include "base/cancel.h"
#include "io/http/endpoint.h"
#include "io/options.h"
#include "io/sink.h"
#include "io/source.h"

namespace tensorizer {

// Opens a file on a web server.
std::unique_ptr<Source> http_source(std::unique_ptr<HttpEndpoint> endpoint,
                                    const SourceOptions& options, Cancel& cancel);

// Saves one, in one PUT whose body is streamed: bytes come in ascending order.
std::unique_ptr<Sink> http_sink(std::unique_ptr<HttpEndpoint> endpoint, const HttpOptions& options);

// Whether a header of this value would end where it should.
bool is_header_value(std::string_view value);

}  // namespace tensorizer
