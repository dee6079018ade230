// A Redis server that answers as the test's handler says.
#pragma once

#include "tiny_server.h"

namespace tensorizer::testing_support {

class TinyRedis {
 public:
  using Words = std::vector<std::string>;
  // Returns the reply to a command, as it goes over the wire, or null to close the connection.
  using Handler = std::function<std::optional<std::string>(const Words&)>;

  explicit TinyRedis(Handler handler) : handler_(std::move(handler)) {
    listener_ = listen_here(port_);
    thread_ = std::thread([this] { serve(); });
  }
  ~TinyRedis() {
    stop_ = true;
    thread_.join();
  }

  std::string uri(const std::string& prefix) const {
    return "redis://127.0.0.1:" + std::to_string(port_) + "/" + prefix;
  }

  // Returns the commands of this name that came so far.
  std::vector<Words> commands(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    std::vector<Words> found;
    for (const Words& words : commands_) {
      if (words.front() == name) found.push_back(words);
    }
    return found;
  }

 private:
  struct Client {
    Descriptor connection;
    std::string received;  // and not answered yet
  };

  void serve() {
    std::vector<Client> clients;
    while (!stop_) {
      std::vector<pollfd> waiting{{listener_.get(), POLLIN, 0}};
      for (const Client& client : clients) {
        waiting.push_back({client.connection.get(), POLLIN, 0});
      }
      if (poll(waiting.data(), waiting.size(), 20) <= 0) continue;
      for (std::size_t i = clients.size(); i > 0; --i) {
        if (waiting[i].revents == 0 || answer(clients[i - 1])) continue;
        clients.erase(clients.begin() + static_cast<std::ptrdiff_t>(i - 1));
      }
      if (waiting[0].revents != 0) {
        clients.push_back(
            {Descriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)), {}});
      }
    }
  }

  // Answers all commands that have arrived. Returns false if the connection ends.
  bool answer(Client& client) {
    char bytes[1 << 16];
    const ssize_t count = recv(client.connection.get(), bytes, sizeof(bytes), 0);
    if (count <= 0) return false;
    client.received.append(bytes, static_cast<std::size_t>(count));
    std::string replies;
    for (Words words = take(client.received); !words.empty(); words = take(client.received)) {
      {
        const std::lock_guard lock(mutex_);
        commands_.push_back(words);
      }
      const std::optional<std::string> reply = handler_(words);
      if (!reply) return false;
      replies += *reply;
    }
    for (std::size_t sent = 0; sent < replies.size();) {
      const ssize_t some = ::send(client.connection.get(), replies.data() + sent,
                                  replies.size() - sent, MSG_NOSIGNAL);
      if (some <= 0) return false;
      sent += static_cast<std::size_t>(some);
    }
    return true;
  }

  // Takes the first command off the bytes; none if it is not complete.
  static Words take(std::string& received) {
    Words words;
    std::size_t at = 0;
    const auto number = [&]() -> std::optional<std::uint64_t> {
      const std::size_t end = received.find("\r\n", at);
      if (end == std::string::npos) return std::nullopt;
      const auto found = parse_number(std::string_view(received).substr(at + 1, end - at - 1));
      at = end + 2;
      return found;
    };
    const auto count = number();
    while (count && words.size() < *count) {
      const auto size = number();
      if (!size || received.size() < at + *size + 2) return {};
      words.push_back(received.substr(at, *size));
      at += *size + 2;
    }
    received.erase(0, words.empty() ? 0 : at);
    return words;
  }

  const Handler handler_;
  Descriptor listener_;
  std::uint16_t port_ = 0;
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  std::vector<Words> commands_;
  std::thread thread_;
};

}  // namespace tensorizer::testing_support
