// Uploads objects to S3.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "io/http/client.h"
#include "io/shared_sink.h"

namespace tensorizer {

// Returns a sink that uploads an object in parts, or in one request if it is small. `part_size` is
// for uploads whose size is not known in begin().
std::unique_ptr<Sink> s3_sink(HttpAccess access, std::uint64_t part_size);

// Returns a sink for an upload that several processes write. `joined`: what share() has returned in
// another one.
std::unique_ptr<SharedSink> shared_s3_sink(HttpAccess access,
                                           const std::optional<std::string>& joined);

}  // namespace tensorizer
