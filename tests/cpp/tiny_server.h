// A web server that answers as the test's handler says, one request per connection.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/number.h"
#include "base/text.h"
#include "io/descriptor.h"

namespace tensorizer::testing_support {

// Listens on a free port of this machine, which it writes to `port`.
inline Descriptor listen_here(std::uint16_t& port) {
  Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(listener.get(), any, size), 0);
  EXPECT_EQ(listen(listener.get(), 16), 0);
  EXPECT_EQ(getsockname(listener.get(), any, &size), 0);
  port = ntohs(address.sin_port);
  return listener;
}

struct TinyRequest {
  std::string method, path, body;
  std::map<std::string, std::string> headers;  // names in lower case
};

struct TinyAnswer {
  int status = 200;
  std::string body;
  std::string headers;  // whole lines, each with its line ending
};

class TinyServer {
 public:
  // Returns the response to a request, or null to never send one.
  using Handler = std::function<std::optional<TinyAnswer>(const TinyRequest&)>;

  explicit TinyServer(Handler handler) : handler_(std::move(handler)) {
    listener_ = listen_here(port_);
    thread_ = std::thread([this] { serve(); });
  }
  ~TinyServer() {
    stop_ = true;
    thread_.join();
  }

  std::string url(const std::string& path = "") const {
    return "http://127.0.0.1:" + std::to_string(port_) + path;
  }

  // Returns the requests received so far.
  std::vector<TinyRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void serve() {
    std::vector<Descriptor> silent;
    while (!stop_) {
      if (!is_ready(listener_)) continue;
      Descriptor connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      const TinyRequest request = receive(connection);
      {
        const std::lock_guard lock(mutex_);
        requests_.push_back(request);
      }
      if (const auto answer = handler_(request)) {
        send(connection, *answer);
      } else {
        silent.push_back(std::move(connection));
      }
    }
  }

  static bool is_ready(const Descriptor& descriptor) {
    pollfd waiting{descriptor.get(), POLLIN, 0};
    return poll(&waiting, 1, 20) > 0;
  }

  TinyRequest receive(const Descriptor& connection) const {
    std::string text;
    std::size_t head = std::string::npos;
    std::size_t length = 0;
    TinyRequest request;
    while (!stop_ && (head == std::string::npos || text.size() < head + length)) {
      if (!is_ready(connection)) continue;
      char bytes[4096];
      const ssize_t count = recv(connection.get(), bytes, sizeof(bytes), 0);
      if (count <= 0) break;
      text.append(bytes, static_cast<std::size_t>(count));
      if (head != std::string::npos || text.find("\r\n\r\n") == std::string::npos) continue;
      head = text.find("\r\n\r\n") + 4;
      request = parse(text.substr(0, head));
      length = parse_number(request.headers["content-length"]).value_or(0);
      if (request.headers.contains("expect")) {
        const std::string_view go_on = "HTTP/1.1 100 Continue\r\n\r\n";
        ::send(connection.get(), go_on.data(), go_on.size(), MSG_NOSIGNAL);
      }
    }
    if (head != std::string::npos) request.body = text.substr(head);
    return request;
  }

  static TinyRequest parse(const std::string& head) {
    TinyRequest request;
    const std::size_t space = head.find(' ');
    request.method = head.substr(0, space);
    request.path = head.substr(space + 1, head.find(' ', space + 1) - space - 1);
    for (std::size_t at = head.find("\r\n") + 2; head.find(':', at) != std::string::npos;) {
      const std::size_t colon = head.find(':', at);
      const std::size_t end = head.find("\r\n", at);
      request.headers[lower_case(head.substr(at, colon - at))] =
          trimmed(std::string_view(head).substr(colon + 1, end - colon - 1));
      at = end + 2;
    }
    return request;
  }

  static void send(const Descriptor& connection, const TinyAnswer& answer) {
    const std::string text =
        "HTTP/1.1 " + std::to_string(answer.status) +
        " x\r\nConnection: close\r\nContent-Length: " + std::to_string(answer.body.size()) +
        "\r\n" + answer.headers + "\r\n" + answer.body;
    ::send(connection.get(), text.data(), text.size(), MSG_NOSIGNAL);
    shutdown(connection.get(), SHUT_WR);
  }

  const Handler handler_;
  Descriptor listener_;
  std::uint16_t port_ = 0;
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  std::vector<TinyRequest> requests_;
  std::thread thread_;
};

}  // namespace tensorizer::testing_support
