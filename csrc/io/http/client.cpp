#include "io/http/client.h"

#include "io/http/share.h"

namespace tensorizer {

HttpClient::HttpClient(std::unique_ptr<HttpEndpoint> endpoint, HttpOptions options)
    : endpoint_(std::move(endpoint)),
      options_(std::move(options)),
      share_(std::make_shared<HttpShare>()) {}

HttpClient::~HttpClient() = default;

std::unique_ptr<HttpConnection> HttpClient::take() {
  const std::lock_guard lock(mutex_);
  // A child of fork() must not touch the connections of its parent.
  if (process_ != getpid()) {
    for (std::unique_ptr<HttpConnection>& connection : idle_) connection.release();
    idle_.clear();
    share_ = std::make_shared<HttpShare>();
    process_ = getpid();
  }
  if (idle_.empty()) return std::make_unique<HttpConnection>(options_, share_);
  std::unique_ptr<HttpConnection> connection = std::move(idle_.back());
  idle_.pop_back();
  return connection;
}

void HttpClient::give_back(std::unique_ptr<HttpConnection> connection) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(connection));
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
