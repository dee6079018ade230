// Sends the requests for one file on a server.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "io/http/endpoint.h"
#include "io/http/pool.h"
#include "io/per_process.h"
#include "io/secret.h"
#include "io/source.h"

namespace tensorizer {

// The endpoint of a file, and the connections to it.
struct HttpAccess {
  std::unique_ptr<HttpEndpoint> endpoint;
  std::shared_ptr<HttpPool> pool;
};

// Thread-safe.
class HttpClient final : public Redactor {
 public:
  explicit HttpClient(HttpAccess access)
      : endpoint_(std::move(access.endpoint)), pool_(std::move(access.pool)) {}

  const HttpOptions& options() const noexcept { return pool_->options(); }
  HttpEndpoint& endpoint() noexcept { return *endpoint_; }
  const std::string& label() const { return endpoint_->label(); }

  // See HttpPool. A connection must not outlive the client.
  std::unique_ptr<HttpConnection> take() { return pool_->take(stats_.get()); }
  void give_back(std::unique_ptr<HttpConnection> connection) {
    pool_->give_back(std::move(connection));
  }

  // Redacts what a request sends (HttpRequest): everywhere, or, if it is so short that it may be a
  // word, in what redact() is given.
  void redact(const Secrets& secrets, const Secrets& passing);
  // Throws the Error for a server that does `what`: "sends the file encoded".
  [[noreturn]] void throw_wrong(const std::string& what) const;
  void redact(Redaction& text) const override;
  // Returns what only redact() redacts.
  Secrets short_secrets() const;

  void count_retry() { stats_.get()->count_retry(); }
  // Returns the statistics of this client, whoever else uses the pool.
  SourceStats stats() const { return stats_.get()->so_far(); }

 private:
  const std::unique_ptr<HttpEndpoint> endpoint_;
  const std::shared_ptr<HttpPool> pool_;
  mutable PerProcess<HttpStats> stats_;
  mutable std::mutex mutex_;
  std::deque<std::string> short_;  // secrets, each once, the latest at the end
};

}  // namespace tensorizer
