// Fuzzes options: lines of "name=value", in which a '$' stands for a secret.
#include <cmath>

#include "engine/options.h"
#include "fuzz_text.h"
#include "io/aws/options.h"
#include "io/http/options.h"
#include "io/places/open.h"
#include "io/redis/options.h"

namespace tensorizer {
namespace {

constexpr auto kInvalid = ErrorKind::InvalidArgument;

bool is_time(double seconds, double least) {
  return std::isfinite(seconds) && seconds >= least && seconds <= 1e6;
}

void check_places(const OptionList& given) {
  const auto http = options_from<HttpOptions>(given, http_options);
  require(http.connections >= 1 && http.connections <= 256);
  require(http.chunk_size >= 65536 && http.retries >= 0 && http.retries <= 1000);
  require(is_time(http.connect_timeout, 0.001) && is_time(http.stall_timeout, 0.001));
  require(is_time(http.timeout, 0));
  for (const auto& [name, value] : http.headers) {
    require(!name.empty() && is_header_value(name) && is_header_value(value));
  }
  const auto redis = options_from<RedisOptions>(given, redis_options);
  require(redis.connections >= 1 && redis.retries >= 0 && redis.database >= -1);
  const auto s3 = options_from<S3Options>(given, s3_options);
  require(s3.addressing.empty() || s3.addressing == "path" || s3.addressing == "virtual");
}

void fuzz(std::string_view text) {
  if (contains(text, kSecret)) return;
  OptionList given;
  OptionList plain;  // without the secret, which is no valid value of most options
  for (const std::string_view line : split(text, '\n')) {
    const std::size_t equals = std::min(line.find('='), line.size());
    const std::string name(line.substr(0, equals));
    const std::string_view value = line.substr(std::min(equals + 1, line.size()));
    given.emplace_back(name, with_secret(value));
    plain.emplace_back(name, value);
  }
  OptionList taken;
  const std::vector<Option> known = place_options(taken);
  // A value that is no secret may be quoted, so only those are compared that have none.
  const auto secret_of = [&](const auto& option) {
    const Option* const found = find_option(known, option.first);
    return (found != nullptr && found->secret && !found->names_secret(option.second)) ||
           option.first == "key" || !contains(option.second, kSecret);
  };
  if (!std::all_of(given.begin(), given.end(), secret_of)) given = plain;
  if (accepts({kInvalid}, [&] { apply_options(given, known, OptionUse::Any); })) {
    require(taken.size() == given.size());
    check_places(given);
  }
  accepts({kInvalid, ErrorKind::NotFound}, [&] {
    const LoadOptions load = parse_load_options(given);
    require(load.memory_ceiling > 0 && load.staging > 0);
  });
  accepts({kInvalid, ErrorKind::NotFound}, [&] {
    const SaveOptions save = parse_save_options(given);
    require(save.memory_ceiling > 0 && (!save.digest_chunk || *save.digest_chunk > 0));
  });
  accepts({kInvalid, ErrorKind::NotFound}, [&] { parse_writer_options(given); });
  accepts({kInvalid}, [&] { refuse_secrets("s3://bucket/key", given, "a pickled Reader"); });
}

}  // namespace
}  // namespace tensorizer

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tensorizer::fuzz({reinterpret_cast<const char*>(data), size});
  return 0;
}
