#include "io/redis/open.h"

#include "io/redis/client.h"
#include "io/redis/commit.h"
#include "io/redis/keys.h"
#include "io/redis/options.h"
#include "io/retry.h"

namespace tensorizer {

namespace {

// Replaces the head of a file that has no tensors, and so consists of it. Returns whether `next` is
// there now; null if another client has changed it meanwhile.
std::optional<bool> try_swap(RedisConnection& connection, const RedisClient& client,
                             std::optional<ConstBytes> known, ConstBytes next, Cancel& cancel) {
  const std::string key = redis_header_key(client.address().prefix);
  connection.add({"WATCH", key});
  connection.add({"GET", key});
  connection.send(cancel);
  connection.receive_ok(cancel);
  const RedisReply there = connection.receive_any(cancel);
  if (there.kind == RedisReply::Kind::Error) throw_redis_error(there.text, client.label());
  const bool exists = there.kind != RedisReply::Kind::Nothing;
  if (exists && there.text == as_text(next)) return true;
  if (exists != known.has_value() || (exists && there.text != as_text(*known))) return false;
  connection.add({"MULTI"});
  connection.add({"SET", key}, {&next, 1});
  if (client.options().ttl > 0) {
    connection.add({"EXPIRE", key, std::to_string(client.options().ttl)});
  }
  connection.add({"EXEC"});
  connection.send(cancel);
  const int queued = client.options().ttl > 0 ? 3 : 2;
  for (int i = 0; i < queued; ++i) connection.receive_ok(cancel);
  const RedisReply done = connection.receive_any(cancel);
  if (done.kind == RedisReply::Kind::Error) throw_redis_error(done.text, client.label());
  if (done.kind == RedisReply::Kind::Nothing) return std::nullopt;
  return true;
}

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

// A transaction whose response was lost may still run, if the file has not changed until then. So
// the server is asked what it has before each try.
bool swap_redis_file(const std::string& uri, std::optional<ConstBytes> known, ConstBytes next,
                     const SinkOptions& options, Cancel& cancel) {
  const RedisOptions redis = options_from(options.given, &redis_options);
  RedisClient client(redis_address(uri, redis), redis);
  Tries tries(redis.retries);
  for (;;) {
    try {
      const std::unique_ptr<RedisConnection> connection = client.connect_first(cancel);
      for (int each = 0; each < kMostRedisTries; ++each) {
        if (const auto done = try_swap(*connection, client, known, next, cancel)) return *done;
      }
      throw_redis_rivals("save", client.address());
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
    .identity = &redis_identity,
    .remove = &remove_redis_file,
    .swap = &swap_redis_file,
};

}  // namespace tensorizer
