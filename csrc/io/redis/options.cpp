#include "io/redis/options.h"

#include <cmath>

namespace tensorizer {

namespace {

constexpr double kLongestTtl = std::uint64_t{1} << 32;

}  // namespace

std::vector<Option> redis_options(RedisOptions& redis) {
  std::vector<Option> options{
      // The same names and limits as for HTTP.
      seconds_option("connect_timeout", redis.connect_timeout, 0.001),
      seconds_option("stall_timeout", redis.stall_timeout, 0.001),
      number_option("connections", "a number from 1 to 256", redis.connections, 1, 256),
      number_option("retries", "a number from 0 to 1000", redis.retries, 0, 1000),
      secret_option("redis_user", redis.user),
      secret_option("redis_password", redis.password),
      number_option("db", "the number of a database", redis.database, 0, 1 << 30),
      exclusive({"ttl", "a whole number of seconds, such as 3600 or 1h, or 0 for ever",
                 [&redis](const std::string&, const std::string& text) {
                   const double given = parse_seconds(text).value_or(-1);
                   if (given < 0 || given > kLongestTtl || given != std::floor(given)) return false;
                   redis.ttl = static_cast<std::uint64_t>(given);
                   return true;
                 }},
                OptionUse::Save, "0"),
      exclusive(bool_option("overwrite", redis.overwrite), OptionUse::Save, "true"),
  };
  const std::vector<Option> tls = tls_options(redis.tls);
  options.insert(options.end(), tls.begin(), tls.end());
  return options;
}

}  // namespace tensorizer
