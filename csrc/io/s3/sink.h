// Uploads objects to S3.
#pragma once

#include <cstdint>
#include <memory>

#include "io/http/endpoint.h"
#include "io/http/pool.h"
#include "io/sink.h"

namespace tensorizer {

// Returns a sink that uploads an object in parts, or in one request if it is small. `part_size` is
// for uploads whose size is not known in begin().
std::unique_ptr<Sink> s3_sink(std::unique_ptr<HttpEndpoint> endpoint,
                              std::shared_ptr<HttpPool> pool, std::uint64_t part_size);

}  // namespace tensorizer
