#include "io/redis/client.h"

namespace tensorizer {

namespace {

// Returns the value of a name in the reply to HELLO.
std::string value_of(const RedisReply& reply, std::string_view name) {
  for (std::size_t i = 0; i + 1 < reply.list.size(); i += 2) {
    if (reply.list[i].text == name) return reply.list[i + 1].text;
  }
  return {};
}

double seconds(std::uint64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

}  // namespace

RedisClient::RedisClient(RedisAddress address, RedisOptions options)
    : address_(std::move(address)), options_(std::move(options)) {}

std::unique_ptr<RedisConnection> RedisClient::connect(const RedisOptions& options, Cancel& cancel) {
  return std::make_unique<RedisConnection>(address_, options, share_.get(), counters_, cancel);
}

std::unique_ptr<RedisConnection> RedisClient::connect_within(double patience, Cancel& cancel) {
  RedisOptions options = options_;
  options.connect_timeout = options.stall_timeout = patience;
  return connect(options, cancel);
}

std::unique_ptr<RedisConnection> RedisClient::connect_first(Cancel& cancel) {
  std::unique_ptr<RedisConnection> connection = connect(cancel);
  connection->add({"HELLO", "2"});
  connection->send(cancel);
  // An error is ignored: a server without HELLO shows by its later replies whether it is a cluster.
  const RedisReply hello = connection->receive_any(cancel);
  if (value_of(hello, "mode") == "cluster") throw_redis_cluster(label());
  return connection;
}

SourceStats RedisClient::stats() const {
  SourceStats stats;
  stats.requests = counters_.commands;
  stats.connections = counters_.connections;
  stats.retries = counters_.retries;
  stats.received = counters_.received;
  stats.lookup = seconds(counters_.lookup);
  stats.connect = seconds(counters_.connect);
  stats.tls = seconds(counters_.tls);
  stats.first_byte = seconds(counters_.first_byte);
  stats.transfer = seconds(counters_.transfer);
  return stats;
}

}  // namespace tensorizer
