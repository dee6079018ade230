// Reads replies of a Redis server out of the bytes that come from it. hiredis parses them; the
// limits on what a reply may take are ours.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "io/redis/reply.h"

struct redisReader;

namespace tensorizer {

// One thread at a time. Throws Error(Unavailable) for bytes that are no reply in RESP2, and for a
// reply that nests deeper than 8 lists, has a line of more than 64 KiB, or takes more than 128 MiB;
// of no more use after that.
class RedisParser {
 public:
  // `label`: the server's file, for messages.
  explicit RedisParser(std::string label);
  ~RedisParser();
  RedisParser(const RedisParser&) = delete;
  RedisParser& operator=(const RedisParser&) = delete;

  // Takes bytes off the front of `bytes`, and never one behind the end of the reply. Returns the
  // reply once it is complete; until then all of `bytes` is taken.
  std::optional<RedisReply> take(ConstBytes& bytes);

  // As take(), but of a string only the head is taken: returns Kind::Text, whose `number` is the
  // length of the string, and the bytes of the string are the next that come.
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
  bool takes_head_ = false;  // of a string, whose "$" went to the reader as the ":" of a number
};

}  // namespace tensorizer
