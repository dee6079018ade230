#include "io/redis/open.h"

#include "io/redis/client.h"
#include "io/redis/commit.h"
#include "io/redis/options.h"
#include "io/retry.h"

namespace tensorizer {

namespace {

// A transaction whose response was lost may still run. It watches the header, so it removes nothing
// once the next one has run, or another client has saved the file again.
void remove_redis_file(const std::string& uri, const SinkOptions& options, Cancel& cancel) {
  const RedisOptions redis = options_from(options.given, &redis_options);
  RedisClient client(redis_address(uri, redis), redis);
  Tries tries(redis.retries);
  for (;;) {
    try {
      remove_redis_keys(*client.connect_first(cancel), client.address(), cancel);
      return;
    } catch (const TemporaryError& error) {
      tries.failed(error, 0, cancel);
    }
  }
}

constexpr UriScheme kSchemes[] = {
    {"redis", "redis://"}, {"rediss", "rediss://"}, {"unix", "unix://"}};

}  // namespace

const PlaceKind redis_files{
    .folder = "redis",
    .schemes = kSchemes,
    .options = &checks<&redis_options>,
    .open_source = &open_redis_source,
    .open_sink = &open_redis_sink,
    .remove = &remove_redis_file,
};

}  // namespace tensorizer
