// The replies of a Redis server, and the errors that they become.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tensorizer {

struct RedisReply {
  enum class Kind : std::uint8_t { Status, Error, Number, Text, Nothing, List };

  Kind kind = Kind::Nothing;
  std::string text;  // of a Status, an Error or a Text
  std::int64_t number = 0;
  std::vector<RedisReply> list;
};

// Throws the error that an Error of a server means: a TemporaryError if a retry may succeed.
// `label` is that of the file.
[[noreturn]] void throw_redis_error(std::string_view text, const std::string& label);

// Throws the error for a reply to AUTH. Does not quote its text, which may repeat the password.
[[noreturn]] void throw_login_error(std::string_view text, const std::string& label);

// Throws InvalidArgument: files cannot be in a Redis Cluster.
[[noreturn]] void throw_redis_cluster(const std::string& label);

}  // namespace tensorizer
