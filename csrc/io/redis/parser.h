// Parses the replies of a Redis server with hiredis, within limits of our own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "io/redis/reply.h"

struct redisReader;

namespace tensorizer {

// Not thread-safe: one thread at a time. Throws Error(Unavailable) for bytes that are not a reply
// in RESP2, and for a reply that nests deeper than 8 lists, has a line of more than 64 KiB, or
// takes more than 128 MiB. After an error, the parser must not be used.
class RedisParser {
 public:
  // `label`: the label of the file, for messages.
  explicit RedisParser(std::string label);
  ~RedisParser();
  RedisParser(const RedisParser&) = delete;
  RedisParser& operator=(const RedisParser&) = delete;

  // Consumes bytes from the front of `bytes`, and none behind the end of the reply. Returns the
  // reply once it is complete; until then it consumes all of `bytes` and returns null.
  std::optional<RedisReply> take(ConstBytes& bytes);

  // Like take(), but consumes only the head of a string: returns Kind::Text, whose `number` is the
  // length of the string. The bytes of the string come next.
  std::optional<RedisReply> take_head(ConstBytes& bytes);

  [[noreturn]] void throw_nonsense(std::string_view seen) const;

 private:
  struct Building;

  std::size_t next_step(ConstBytes bytes) const;
  std::string_view pending() const;
  RedisReply* feed(ConstBytes step);

  const std::string label_;
  std::unique_ptr<Building> building_;
  std::unique_ptr<redisReader, void (*)(redisReader*)> reader_;
  bool takes_head_ = false;  // of a string: its "$" was passed to the reader as ":" (a number)
};

}  // namespace tensorizer
