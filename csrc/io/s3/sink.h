// Uploads of objects to S3.
#pragma once

#include <cstdint>
#include <memory>

#include "io/http/endpoint.h"
#include "io/http/options.h"
#include "io/sink.h"

namespace tensorizer {

// Uploads an object: in parts, or in one request where it is small. `part_size` is that of an
// upload whose size is not announced.
std::unique_ptr<Sink> s3_sink(std::unique_ptr<HttpEndpoint> endpoint, const HttpOptions& http,
                              std::uint64_t part_size);

}  // namespace tensorizer
