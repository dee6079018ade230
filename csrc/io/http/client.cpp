#include "io/http/client.h"

namespace tensorizer {

HttpClient::HttpClient(std::unique_ptr<HttpEndpoint> endpoint, HttpOptions options)
    : endpoint_(std::move(endpoint)), options_(std::move(options)) {}

std::unique_ptr<HttpConnection> HttpClient::take() {
  if (std::unique_ptr<HttpConnection> connection = idle_.take()) return connection;
  return std::make_unique<HttpConnection>(options_, share_.get());
}

void HttpClient::give_back(std::unique_ptr<HttpConnection> connection) {
  idle_.give_back(std::move(connection));
}

}  // namespace tensorizer
