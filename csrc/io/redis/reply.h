// What a Redis server answers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tensorizer {

struct RedisReply {
  enum class Kind : std::uint8_t { Status, Error, Number, Text, Nothing, List };

  Kind kind = Kind::Nothing;
  std::string text;  // of a Status, an Error, a Text
  std::int64_t number = 0;
  std::vector<RedisReply> list;
};

// Throws what an Error of a server means, a TemporaryError where another try may go better. `label`
// is that of the file.
[[noreturn]] void throw_redis_error(std::string_view text, const std::string& label);

// The same for an answer to AUTH, whose words may repeat the password.
[[noreturn]] void throw_login_error(std::string_view text, const std::string& label);

// Redis Cluster is not for files.
[[noreturn]] void throw_redis_cluster(const std::string& label);

}  // namespace tensorizer
