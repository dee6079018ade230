#include "io/redis/open.h"

#include "io/redis/options.h"

namespace tensorizer {

namespace {

constexpr UriScheme kSchemes[] = {
    {"redis", "redis://"}, {"rediss", "rediss://"}, {"unix", "unix://"}};

}  // namespace

const PlaceKind redis_files{
    .folder = "redis",
    .schemes = kSchemes,
    .options = &checks<&redis_options>,
    .open_source = &open_redis_source,
    .open_sink = &open_redis_sink,
};

}  // namespace tensorizer
