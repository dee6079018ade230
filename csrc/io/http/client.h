// The way to one file on a server: connections that are kept, and requests over them.
#pragma once

#include <unistd.h>

#include <functional>
#include <memory>
#include <mutex>

#include "io/http/connection.h"
#include "io/http/endpoint.h"
#include "io/http/options.h"
#include "io/idle_pool.h"
#include "io/source.h"

namespace tensorizer {

// Any thread.
class HttpClient {
 public:
  HttpClient(std::unique_ptr<HttpEndpoint> endpoint, HttpOptions options);
  ~HttpClient();

  const HttpOptions& options() const noexcept { return options_; }
  HttpEndpoint& endpoint() noexcept { return *endpoint_; }
  const std::string& label() const { return endpoint_->label(); }

  // A connection that nobody uses, and its return. One that is not given back is closed.
  std::unique_ptr<HttpConnection> take();
  void give_back(std::unique_ptr<HttpConnection> connection);

  void count_retry();
  SourceStats stats() const;

 private:
  const std::unique_ptr<HttpEndpoint> endpoint_;
  const HttpOptions options_;
  mutable std::mutex mutex_;
  pid_t process_ = getpid();
  std::shared_ptr<HttpShare> share_;
  IdlePool<HttpConnection> idle_;
};

}  // namespace tensorizer
