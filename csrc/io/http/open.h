// Opens files on web servers; see docs/remote.md.
#pragma once

#include <memory>
#include <string>

#include "base/cancel.h"
#include "io/http/endpoint.h"
#include "io/http/pool.h"
#include "io/options.h"
#include "io/sink.h"
#include "io/source.h"

namespace tensorizer {

// `uri`: http:// or https://.
std::unique_ptr<Source> open_http_source(const std::string& uri, const SourceOptions& options,
                                         Cancel& cancel);
// Returns a sequential sink, which saves by one PUT whose body is streamed.
std::unique_ptr<Sink> open_http_sink(const std::string& uri, const SinkOptions& options,
                                     Cancel& cancel);

// Returns the URI of the file `name` beside the one that `uri` names (sibling_uri() in io/open.h).
std::string http_sibling(const std::string& uri, const std::string& name, const OptionList& given);

// Opens the file of an endpoint.
std::unique_ptr<Source> http_source(std::unique_ptr<HttpEndpoint> endpoint,
                                    std::shared_ptr<HttpPool> pool, const SourceOptions& options,
                                    Cancel& cancel);

}  // namespace tensorizer
