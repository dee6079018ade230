// The keys that hold the bytes of a file: `PREFIX:NAME:OFFSET`, where OFFSET is the offset in the
// file of the key's first byte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "io/redis/connection.h"

namespace tensorizer {

struct RedisKey {
  std::string name;  // the whole key
  std::uint64_t offset = 0;
  std::uint64_t size = 0;

  std::uint64_t end() const noexcept { return offset + size; }
  bool operator==(const RedisKey&) const = default;
};

// Returns the key of a file's head.
std::string redis_header_key(std::string_view prefix);
std::string redis_key(std::string_view prefix, std::string_view name, std::uint64_t offset);

// Returns a Redis pattern that matches `text` and nothing else.
std::string redis_pattern(std::string_view text);

struct RedisListing {
  std::vector<RedisKey> keys;  // of the file, without their sizes, sorted by offset and name
  // How the keys of files with longer prefixes start, "PREFIX:MORE:". Sorted; none of them begins
  // with another one.
  std::vector<std::string> inner;
};

// The limits of a listing. Tests lower them.
struct RedisListingLimits {
  std::size_t keys;
  std::uint64_t bytes;  // of their names, and of the cursors
  std::uint64_t replies;
};
extern RedisListingLimits redis_listing_limits;

// Asks the server for every key under the prefix. Throws Unavailable if the server exceeds the
// limits, repeats itself, or brings fewer than two replies a second for the time of a stall.
RedisListing list_redis_keys(RedisConnection& connection, const RedisAddress& address,
                             Cancel& cancel);
// Makes the same listing of given names. Leaves out those that are not keys of the file.
RedisListing sort_redis_keys(std::string_view prefix, std::vector<std::string> names);

// Returns true if a key belongs to one of the files of RedisListing::inner.
bool lies_under(std::string_view key, const std::vector<std::string>& inner);

// Asks the server for the sizes of the keys.
void measure_redis_keys(RedisConnection& connection, std::vector<RedisKey>& keys,
                        const std::string& label, Cancel& cancel);

// Removes empty keys. Throws Error(NotFound) if none is left, and InvalidFormat unless the others
// make up a file, with each byte in exactly one of them. With `any`, they need not be a whole file:
// only no byte may be in two of them.
void check_redis_keys(std::vector<RedisKey>& keys, const RedisAddress& address, bool any = false);

}  // namespace tensorizer
