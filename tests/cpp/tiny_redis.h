// A Redis server that answers as the test's handler says.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/number.h"
#include "tiny_listener.h"

namespace tensorizer::testing_support {

class TinyRedis {
 public:
  using Words = std::vector<std::string>;
  // Returns the reply to a command, as it goes over the wire, or null to close the connection.
  using Handler = std::function<std::optional<std::string>(const Words&)>;

  explicit TinyRedis(Handler handler) : handler_(std::move(handler)) {}

  std::string uri(const std::string& prefix) const {
    return "redis://" + listener_.address() + "/" + prefix;
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
  // Answers all commands that have arrived.
  bool answer(TinyListener::Client& client) {
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
    TinyListener::send(client, replies);
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
  mutable std::mutex mutex_;
  std::vector<Words> commands_;
  // The last member: its thread uses the others.
  TinyListener listener_{[this](TinyListener::Client& client) { return answer(client); }};
};

}  // namespace tensorizer::testing_support
