// Accepts connections on a port of this machine, and reads from all of them on one thread.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "io/descriptor.h"

namespace tensorizer::testing_support {

class TinyListener {
 public:
  struct Client {
    Descriptor connection;
    std::string received;  // and not answered yet
  };
  // Called on the listener's thread when more has been received. Returns false to close the
  // connection.
  using Answer = std::function<bool(Client& client)>;

  explicit TinyListener(Answer answer)
      : answer_(std::move(answer)), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_.get(), any, size), 0);
    EXPECT_EQ(listen(listener_.get(), 16), 0);
    EXPECT_EQ(getsockname(listener_.get(), any, &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~TinyListener() {
    stop_ = true;
    thread_.join();
  }
  TinyListener(const TinyListener&) = delete;
  TinyListener& operator=(const TinyListener&) = delete;

  // Returns "127.0.0.1:PORT".
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  static void send(const Client& client, std::string_view text) {
    while (!text.empty()) {
      const ssize_t sent = ::send(client.connection.get(), text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      text.remove_prefix(static_cast<std::size_t>(sent));
    }
  }

 private:
  void serve() {
    std::vector<Client> clients;
    while (!stop_) {
      std::vector<pollfd> waiting{{listener_.get(), POLLIN, 0}};
      for (const Client& client : clients) {
        waiting.push_back({client.connection.get(), POLLIN, 0});
      }
      if (poll(waiting.data(), waiting.size(), 20) <= 0) continue;
      for (std::size_t i = clients.size(); i > 0; --i) {
        if (waiting[i].revents == 0 || (receive(clients[i - 1]) && answer_(clients[i - 1])))
          continue;
        clients.erase(clients.begin() + static_cast<std::ptrdiff_t>(i - 1));
      }
      if (waiting[0].revents != 0) {
        clients.push_back(
            {Descriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)), {}});
      }
    }
  }

  static bool receive(Client& client) {
    char bytes[1 << 16];
    const ssize_t count = recv(client.connection.get(), bytes, sizeof(bytes), 0);
    if (count > 0) client.received.append(bytes, static_cast<std::size_t>(count));
    return count > 0;
  }

  const Answer answer_;
  Descriptor listener_;
  std::uint16_t port_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace tensorizer::testing_support
