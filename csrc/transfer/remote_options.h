// The options for what lies on servers.
#pragma once

#include <vector>

#include "io/options.h"
#include "transfer/option_kinds.h"

namespace tensorizer {

// Each keeps references to what it sets.
std::vector<Option> http_options(HttpOptions& http);
std::vector<Option> s3_options(S3Options& s3);
// Behind those for HTTP: names that both have set both.
void add_redis_options(std::vector<Option>& known, RedisOptions& redis);
void add_redis_save_options(std::vector<Option>& known, RedisOptions& redis);

}  // namespace tensorizer
