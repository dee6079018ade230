// How a file appears in Redis: its keys get their names in one transaction, in which those of the
// file before it go.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/cancel.h"
#include "io/redis/connection.h"

namespace tensorizer {

// A key that has been written, and the name that it shall have.
struct RedisMove {
  std::string from;
  std::string to;
  std::uint64_t size;
};

// Throws Error(InvalidArgument) where keys under the prefix belong to another file, and
// SystemError (EEXIST) where there is a file and `options` forbid to replace it.
void check_redis_target(RedisConnection& connection, const RedisAddress& address,
                        const RedisOptions& options, Cancel& cancel);

// All of it, or an error and nothing, unless the connection breaks while the server is at it.
void commit_redis_keys(RedisConnection& connection, const RedisAddress& address,
                       const RedisOptions& options, std::span<const RedisMove> moves,
                       Cancel& cancel);

// Adds commands with many names each, and says how many there are.
std::size_t add_commands(RedisConnection& connection, std::string_view command,
                         std::span<const std::string_view> names);

}  // namespace tensorizer
