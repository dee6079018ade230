// The connections to the server of one file, which are kept for more requests.
#pragma once

#include <functional>
#include <memory>

#include "io/http/connection.h"
#include "io/http/endpoint.h"
#include "io/http/options.h"
#include "io/http/share.h"
#include "io/idle_pool.h"
#include "io/per_process.h"
#include "io/source.h"

namespace tensorizer {

// Thread-safe.
class HttpClient {
 public:
  HttpClient(std::unique_ptr<HttpEndpoint> endpoint, HttpOptions options);

  const HttpOptions& options() const noexcept { return options_; }
  HttpEndpoint& endpoint() noexcept { return *endpoint_; }
  const std::string& label() const { return endpoint_->label(); }

  // Returns an idle connection, or a new one. The caller owns it, and destroying it closes it;
  // give_back() makes it idle again. It must not outlive the client.
  std::unique_ptr<HttpConnection> take();
  void give_back(std::unique_ptr<HttpConnection> connection);

  // Closes the idle connections.
  void close_idle() { idle_.clear(); }

  void count_retry() { share_.get()->count_retry(); }
  SourceStats stats() const { return share_.get()->stats(); }

 private:
  const std::unique_ptr<HttpEndpoint> endpoint_;
  const HttpOptions options_;
  mutable PerProcess<HttpShare> share_;
  IdlePool<HttpConnection> idle_;
};

}  // namespace tensorizer
