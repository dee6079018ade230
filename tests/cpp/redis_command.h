// Parses the commands that a client sends to a Redis server.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/number.h"

namespace tensorizer::testing_support {

using RedisWords = std::vector<std::string>;

// Takes the first command off the bytes. Returns nothing if it is not complete.
inline RedisWords take_redis_command(std::string& received) {
  RedisWords words;
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

}  // namespace tensorizer::testing_support
