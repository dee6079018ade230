// The connections to one Redis server, which are kept for more commands.
#pragma once

#include <memory>

#include "io/idle_pool.h"
#include "io/per_process.h"
#include "io/redis/connection.h"
#include "io/source.h"

namespace tensorizer {

// Thread-safe.
class RedisClient {
 public:
  RedisClient(RedisAddress address, RedisOptions options);

  const RedisAddress& address() const noexcept { return address_; }
  const RedisOptions& options() const noexcept { return options_; }
  const std::string& label() const noexcept { return address_.label; }

  std::unique_ptr<RedisConnection> connect(Cancel& cancel) { return connect(options_, cancel); }
  // Connects with another limit, in seconds, on connecting and on stalls.
  std::unique_ptr<RedisConnection> connect_within(double patience, Cancel& cancel);
  // Opens the first connection. Throws InvalidArgument for a Redis Cluster.
  std::unique_ptr<RedisConnection> connect_first(Cancel& cancel);

  // The idle connections. After one broke, all should be closed: the server has most likely closed
  // the others as well.
  IdlePool<RedisConnection>& idle() noexcept { return idle_; }

  RedisCounters& counters() noexcept { return counters_; }
  SourceStats stats() const;

 private:
  std::unique_ptr<RedisConnection> connect(const RedisOptions& options, Cancel& cancel);

  const RedisAddress address_;
  const RedisOptions options_;
  RedisCounters counters_;
  PerProcess<CurlShare> share_;
  IdlePool<RedisConnection> idle_;
};

}  // namespace tensorizer
