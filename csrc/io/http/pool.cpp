#include "io/http/pool.h"

#include <utility>

namespace tensorizer {

std::unique_ptr<HttpConnection> HttpPool::take(std::shared_ptr<HttpStats> stats) {
  std::unique_ptr<HttpConnection> connection = idle_.take();
  if (!connection) {
    return std::make_unique<HttpConnection>(options_, bandwidth_, share_.get(), stats);
  }
  connection->count_in(std::move(stats));
  return connection;
}

void HttpPool::give_back(std::unique_ptr<HttpConnection> connection) {
  idle_.give_back(std::move(connection));
}

std::shared_ptr<HttpPool> http_pool(SharedAccess* access, const HttpOptions& options) {
  const auto make = [&] { return std::make_shared<HttpPool>(options); };
  return access != nullptr ? access->get<HttpPool>(make) : make();
}

}  // namespace tensorizer
