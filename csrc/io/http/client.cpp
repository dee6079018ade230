#include "io/http/client.h"

#include "io/http/share.h"

namespace tensorizer {

HttpClient::HttpClient(std::unique_ptr<HttpEndpoint> endpoint, HttpOptions options)
    : endpoint_(std::move(endpoint)),
      options_(std::move(options)),
      share_(std::make_shared<HttpShare>()) {}

HttpClient::~HttpClient() = default;

std::unique_ptr<HttpConnection> HttpClient::take() {
  if (std::unique_ptr<HttpConnection> connection = idle_.take()) return connection;
  const std::lock_guard lock(mutex_);
  // A child of fork() needs its own share: the connections of its parent, which it leaks, still use
  // the old one.
  if (process_ != getpid()) {
    share_ = std::make_shared<HttpShare>();
    process_ = getpid();
  }
  return std::make_unique<HttpConnection>(options_, share_);
}

void HttpClient::give_back(std::unique_ptr<HttpConnection> connection) {
  idle_.give_back(std::move(connection));
}

void HttpClient::count_retry() {
  const std::lock_guard lock(mutex_);
  share_->count_retry();
}

SourceStats HttpClient::stats() const {
  const std::lock_guard lock(mutex_);
  return share_->stats();
}

}  // namespace tensorizer
