// The keys that the bytes of a file lie in: `PREFIX:NAME:OFFSET`, where OFFSET says which byte of
// the file the key's first one is.
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

// What a file begins with: its header and its index.
std::string redis_header_key(std::string_view prefix);
std::string redis_key(std::string_view prefix, std::string_view name, std::uint64_t offset);

// A pattern of Redis that matches `text`, and no other text.
std::string redis_pattern(std::string_view text);

struct RedisListing {
  std::vector<RedisKey> keys;  // of the file, without their sizes, by offset and name
  // Longer prefixes, "PREFIX:MORE", which other files have; so their keys begin like those here.
  std::vector<std::string> inner;  // sorted
};

// Asks for every key under the prefix.
RedisListing list_redis_keys(RedisConnection& connection, const RedisAddress& address,
                             Cancel& cancel);
// The same of names that are at hand; those that are none of a file's are left out.
RedisListing sort_redis_keys(std::string_view prefix, std::vector<std::string> names);

// Whether a key is one of a file with one of these prefixes, which are sorted.
bool lies_under(std::string_view key, const std::vector<std::string>& prefixes);

// Asks for the sizes.
void measure_redis_keys(RedisConnection& connection, std::vector<RedisKey>& keys,
                        const std::string& label, Cancel& cancel);

// Leaves out keys that hold nothing, and throws Error(InvalidFormat), or NotFound, unless the
// others make up a file, each byte in one of them. `any`: no byte may be in two, and that is all.
void check_redis_keys(std::vector<RedisKey>& keys, const RedisAddress& address, bool any = false);

}  // namespace tensorizer
