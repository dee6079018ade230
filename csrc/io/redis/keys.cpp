#include "io/redis/keys.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <tuple>

#include "base/error.h"
#include "base/number.h"
#include "base/redaction.h"

namespace tensorizer {

namespace {

constexpr std::string_view kHeader = ":header:0";
// How many of its keys the server examines for one reply, in some milliseconds.
constexpr std::string_view kScanCount = "10000";
// The bytes that a StallWatch counts for each reply, so that two replies a second are fast enough.
constexpr std::uint64_t kReplyWorth = 512;
// How many commands are sent before their replies are read.
constexpr std::size_t kBatch = 1000;

[[noreturn]] void refuse_listing(const std::string& label) {
  throw Error(
      ErrorKind::Unavailable,
      "the server of " + label + " lists its keys endlessly, too slowly, or not as Redis does");
}

}  // namespace

// No real Redis server exceeds them. A table of 10^8 keys that is mostly empty takes 20,000
// replies.
RedisListingLimits redis_listing_limits{.keys = 1 << 24, .bytes = 1 << 30, .replies = 1 << 16};

std::string redis_header_key(std::string_view prefix) {
  return std::string(prefix) + std::string(kHeader);
}

std::string redis_key(std::string_view prefix, std::string_view name, std::uint64_t offset) {
  std::string key(prefix);
  key += ':';
  key += name;
  return key + ":" + std::to_string(offset);
}

std::string redis_pattern(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (std::string_view("*?[]\\").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

RedisListing list_redis_keys(RedisConnection& connection, const RedisAddress& address,
                             Cancel& cancel) {
  const std::string pattern = redis_pattern(address.prefix + ":") + "*";
  std::vector<std::string> names;
  std::uint64_t bytes = 0;
  std::string cursor = "0";
  // Every reply has another cursor. To find those that repeat, each is compared with the one of the
  // reply whose number is the last power of two.
  std::string before;
  std::uint64_t replies = 0;
  StallWatch watch(connection.patience(), 0);
  for (;;) {
    connection.add({"SCAN", cursor, "MATCH", pattern, "COUNT", kScanCount});
    connection.send(cancel);
    RedisReply reply = connection.receive(RedisReply::Kind::List, cancel);
    if (reply.list.size() != 2 || !parse_number(reply.list[0].text)) {
      refuse_listing(address.label);
    }
    cursor = std::move(reply.list[0].text);
    bytes += cursor.size();
    for (RedisReply& key : reply.list[1].list) {
      bytes += key.text.size();
      names.push_back(std::move(key.text));
    }
    if (cursor == before || names.size() > redis_listing_limits.keys ||
        bytes > redis_listing_limits.bytes) {
      refuse_listing(address.label);
    }
    if (cursor == "0") break;
    if (std::has_single_bit(++replies)) before = cursor;
    if (replies >= redis_listing_limits.replies ||
        watch.has_stalled(bytes + replies * kReplyWorth)) {
      refuse_listing(address.label);
    }
  }
  return sort_redis_keys(address.prefix, std::move(names));
}

RedisListing sort_redis_keys(std::string_view prefix, std::vector<std::string> names) {
  // SCAN may return a key more than once.
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  const std::string begin = std::string(prefix) + ":";
  std::erase_if(names, [&](const std::string& name) { return !name.starts_with(begin); });
  RedisListing listing;
  const std::size_t own = prefix.size() + kHeader.size();
  std::vector<std::string> inner;
  for (const std::string& name : names) {
    if (name.size() > own && name.ends_with(kHeader)) {
      inner.push_back(name.substr(0, name.size() - kHeader.size() + 1));
    }
  }
  std::sort(inner.begin(), inner.end());
  for (std::string& start : inner) {
    if (listing.inner.empty() || !start.starts_with(listing.inner.back())) {
      listing.inner.push_back(std::move(start));
    }
  }
  for (std::string& name : names) {
    const std::size_t colon = name.rfind(':');
    const auto offset = parse_number(std::string_view(name).substr(colon + 1));
    // The colon before the offset must not be the one behind the prefix.
    if (!offset || colon < begin.size() || lies_under(name, listing.inner)) continue;
    listing.keys.push_back({std::move(name), *offset, 0});
  }
  std::sort(listing.keys.begin(), listing.keys.end(), [](const RedisKey& a, const RedisKey& b) {
    return std::tie(a.offset, a.name) < std::tie(b.offset, b.name);
  });
  return listing;
}

bool lies_under(std::string_view key, const std::vector<std::string>& inner) {
  // Part "x" of prefix "p" has keys "p:x:OFFSET"; those of prefix "p:x" have one more name.
  const std::string_view named = key.substr(0, key.rfind(':'));
  // Only the last start that is not greater can be one: all texts between a start and a text that
  // begins with it begin with it, too.
  const auto next = std::upper_bound(inner.begin(), inner.end(), named);
  return next != inner.begin() && named.starts_with(*std::prev(next));
}

void measure_redis_keys(RedisConnection& connection, std::vector<RedisKey>& keys,
                        const std::string& label, Cancel& cancel) {
  for (std::size_t begin = 0; begin < keys.size(); begin += kBatch) {
    const std::span<RedisKey> batch =
        std::span(keys).subspan(begin, std::min(kBatch, keys.size() - begin));
    for (const RedisKey& key : batch) connection.add({"STRLEN", key.name});
    connection.send(cancel);
    for (RedisKey& key : batch) {
      const RedisReply reply = connection.receive_any(cancel);
      // A key that is not a string (but a list, for example) is not one of the file's.
      if (reply.kind == RedisReply::Kind::Error && reply.text.starts_with("WRONGTYPE ")) continue;
      if (reply.kind == RedisReply::Kind::Error) throw_redis_error(reply.text, label);
      key.size = static_cast<std::uint64_t>(std::max<std::int64_t>(reply.number, 0));
    }
  }
}

void check_redis_keys(std::vector<RedisKey>& keys, const RedisAddress& address, bool any) {
  const RedactedQuotes quotes(address);
  std::erase_if(keys, [](const RedisKey& key) { return key.size == 0; });
  if (keys.empty()) {
    throw Error(ErrorKind::NotFound, address.label + ": the server has no keys " +
                                         quote(address.prefix + ":NAME:OFFSET") + " in database " +
                                         std::to_string(address.database));
  }
  std::uint64_t end = 0;
  const RedisKey* before = nullptr;
  for (const RedisKey& key : keys) {
    constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
    const bool follows = any ? key.offset >= end : key.offset == end;
    if (!follows || key.offset > kMost || key.size > kMost - key.offset) {
      const std::string behind = before == nullptr ? "" : ", behind key " + quote(before->name);
      throw Error(
          ErrorKind::InvalidFormat,
          address.label + ": " +
              (key.offset > end
                   ? "there is no key " + quote(redis_key(address.prefix, "...", end)) + behind +
                         ": it is missing, or the one before it was truncated"
                   : "key " + quote(key.name) + " begins" + behind + ", before byte " +
                         std::to_string(end) +
                         ", where that ends: it is left over from another file, or the size of one "
                         "of them has changed"));
    }
    end = key.end();
    before = &key;
  }
  if (!any && keys.front().name != redis_header_key(address.prefix)) {
    throw Error(ErrorKind::InvalidFormat, address.label + ": the file begins with key " +
                                              quote(keys.front().name) + ", not with " +
                                              quote(redis_header_key(address.prefix)));
  }
}

}  // namespace tensorizer
