// A web server that answers as the test's handler says, one request per connection.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/number.h"
#include "tiny_listener.h"
#include "web_request.h"

namespace tensorizer::testing_support {

using TinyRequest = WebRequest;

struct TinyAnswer {
  int status = 200;
  std::string body;
  std::string headers;  // whole lines, each with its line ending
};

class TinyServer {
 public:
  // Returns the response to a request, or null to never send one.
  using Handler = std::function<std::optional<TinyAnswer>(const TinyRequest&)>;

  explicit TinyServer(Handler handler) : handler_(std::move(handler)) {}

  std::string url(const std::string& path = "") const {
    return "http://" + listener_.address() + path;
  }

  // Returns the requests received so far.
  std::vector<TinyRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  using Client = TinyListener::Client;

  bool answer(Client& client) {
    const std::size_t end = client.received.find("\r\n\r\n");
    if (end == std::string::npos) return true;
    const std::size_t head = end + 4;
    TinyRequest request = parse_web_head(client.received.substr(0, head));
    if (client.received.size() == head && request.headers.contains("expect")) {
      TinyListener::send(client, "HTTP/1.1 100 Continue\r\n\r\n");
    }
    const std::size_t length = parse_number(request.headers["content-length"]).value_or(0);
    if (client.received.size() < head + length) return true;
    request.body = client.received.substr(head);
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    const std::optional<TinyAnswer> answer = handler_(request);
    if (!answer) return true;  // nothing more comes
    TinyListener::send(client, text_of(*answer));
    shutdown(client.connection.get(), SHUT_WR);
    return false;
  }

  static std::string text_of(const TinyAnswer& answer) {
    return "HTTP/1.1 " + std::to_string(answer.status) +
           " x\r\nConnection: close\r\nContent-Length: " + std::to_string(answer.body.size()) +
           "\r\n" + answer.headers + "\r\n" + answer.body;
  }

  const Handler handler_;
  mutable std::mutex mutex_;
  std::vector<TinyRequest> requests_;
  // The last member: its thread uses the others.
  TinyListener listener_{[this](Client& client) { return answer(client); }};
};

}  // namespace tensorizer::testing_support
