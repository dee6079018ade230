// A Redis server that answers as the test's handler says.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "redis_command.h"
#include "tiny_listener.h"

namespace tensorizer::testing_support {

class TinyRedis {
 public:
  using Words = RedisWords;
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
    for (Words words = take_redis_command(client.received); !words.empty();
         words = take_redis_command(client.received)) {
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

  const Handler handler_;
  mutable std::mutex mutex_;
  std::vector<Words> commands_;
  // The last member: its thread uses the others.
  TinyListener listener_{[this](TinyListener::Client& client) { return answer(client); }};
};

}  // namespace tensorizer::testing_support
