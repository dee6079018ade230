// Makes a saved file appear in Redis: one transaction gives its keys their final names and removes
// the keys of the file that it replaces. Removes files in the same way.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/cancel.h"
#include "io/redis/connection.h"
#include "io/retry.h"

namespace tensorizer {

// The name under which a key was written, and its final name.
struct RedisMove {
  std::string from;
  std::string to;
  std::uint64_t size;
};

// How often to try again when other clients change the keys of a file at the same time, and the
// error after that. `doing`: "save", for the message.
inline constexpr int kMostRedisTries = 100;
[[noreturn]] void throw_redis_rivals(const std::string& doing, const RedisAddress& address);

// Throws Error(InvalidArgument) if keys under the prefix may belong to another file, and
// SystemError (EEXIST) if there is a file and `options` forbid replacing it.
void check_redis_target(RedisConnection& connection, const RedisAddress& address,
                        const RedisOptions& options, Cancel& cancel);

// The connection broke after the transaction was sent, which may have run, or still run.
class RedisTransactionLost : public TemporaryError {
 public:
  using TemporaryError::TemporaryError;
};

// Renames all keys, or throws and changes nothing. Throws RedisTransactionLost if it cannot know.
void commit_redis_keys(RedisConnection& connection, const RedisAddress& address,
                       const RedisOptions& options, std::span<const RedisMove> moves,
                       Cancel& cancel);

// Removes all keys of the file, or throws and removes none. Does nothing if there is no header: the
// other keys may be those of another program. Throws RedisTransactionLost if it cannot know; it may
// then be called again.
void remove_redis_keys(RedisConnection& connection, const RedisAddress& address, Cancel& cancel);

// Adds commands with many names each, and returns the number of commands.
std::size_t add_commands(RedisConnection& connection, std::string_view command,
                         std::span<const std::string_view> names);

}  // namespace tensorizer
