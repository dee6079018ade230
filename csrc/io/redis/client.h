// The way to one Redis server: connections that are kept.
#pragma once

#include <unistd.h>

#include <memory>
#include <mutex>
#include <vector>

#include "io/redis/connection.h"
#include "io/source.h"

namespace tensorizer {

// Any thread.
class RedisClient {
 public:
  RedisClient(RedisAddress address, RedisOptions options);

  const RedisAddress& address() const noexcept { return address_; }
  const RedisOptions& options() const noexcept { return options_; }
  const std::string& label() const noexcept { return address_.label; }

  std::unique_ptr<RedisConnection> connect(Cancel& cancel) { return connect(options_, cancel); }
  // With a limit of its own, in seconds, on connecting and on stalls.
  std::unique_ptr<RedisConnection> connect_within(double patience, Cancel& cancel);
  // The first one: refuses what is no single server.
  std::unique_ptr<RedisConnection> connect_first(Cancel& cancel);

  // A connection that nobody uses, or null; and its return. A child of fork() gets none of those of
  // its parent.
  std::unique_ptr<RedisConnection> take_idle();
  void give_back(std::unique_ptr<RedisConnection> connection);
  // What the server has hung up on one, it most likely has on the others.
  void forget_idle();

  RedisCounters& counters() noexcept { return counters_; }
  SourceStats stats() const;

 private:
  std::unique_ptr<RedisConnection> connect(const RedisOptions& options, Cancel& cancel);
  // Under the mutex: leaves what the parent of a fork() has to the parent.
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
