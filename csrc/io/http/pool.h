// Connections that are kept for more requests.
#pragma once

#include <memory>

#include "io/bandwidth.h"
#include "io/curl_share.h"
#include "io/http/connection.h"
#include "io/http/options.h"
#include "io/http/stats.h"
#include "io/idle_pool.h"
#include "io/options.h"
#include "io/per_process.h"

namespace tensorizer {

// Serves one file, or several with the same options, such as the shards of a model. Thread-safe.
class HttpPool {
 public:
  explicit HttpPool(HttpOptions options)
      : options_(std::move(options)), bandwidth_(options_.max_bandwidth) {}

  const HttpOptions& options() const noexcept { return options_; }

  // Returns an idle connection, or a new one, whose requests count in `stats`. The caller owns it,
  // and destroying it closes it; give_back() makes it idle again. It must not outlive the pool.
  std::unique_ptr<HttpConnection> take(std::shared_ptr<HttpStats> stats);
  void give_back(std::unique_ptr<HttpConnection> connection);

 private:
  const HttpOptions options_;
  Bandwidth bandwidth_;
  PerProcess<CurlShare> share_;
  IdlePool<HttpConnection> idle_;
};

// Returns the pool that is shared by `access`; a new one if that is null.
std::shared_ptr<HttpPool> http_pool(SharedAccess* access, const HttpOptions& options);

}  // namespace tensorizer
