// The connections to one Redis server, which are kept for more commands.
#pragma once

#include <unistd.h>

#include <memory>
#include <mutex>
#include <vector>

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

  // Returns an idle connection, or null. A child of fork() gets none of its parent's.
  std::unique_ptr<RedisConnection> take_idle();
  // Makes a connection idle again.
  void give_back(std::unique_ptr<RedisConnection> connection);
  // Closes all idle connections. For use after one broke: the server has most likely closed the
  // others as well.
  void forget_idle();

  RedisCounters& counters() noexcept { return counters_; }
  SourceStats stats() const;

 private:
  std::unique_ptr<RedisConnection> connect(const RedisOptions& options, Cancel& cancel);
  // In a child of fork(), drops the connections and the share of its parent. The mutex must be
  // locked.
  void follow_fork();

  const RedisAddress address_;
  const RedisOptions options_;
  RedisCounters counters_;
  std::mutex mutex_;
  pid_t process_ = getpid();
  std::shared_ptr<CurlShare> share_;
  std::vector<std::unique_ptr<RedisConnection>> idle_;
};

}  // namespace tensorizer
