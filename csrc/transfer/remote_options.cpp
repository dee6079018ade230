#include "transfer/remote_options.h"

#include <algorithm>

#include "io/http/open.h"

namespace tensorizer {

namespace {

constexpr std::string_view kHeader = "header.";

// What a header may be made of, so that it ends where it should.
bool is_header_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return c > 0x20 && c < 0x7F && c != ':' && c != ';';
  });
}

bool take_header(const std::string& option, const std::string& value, HttpOptions& http) {
  std::string name = option.substr(kHeader.size());
  if (!is_header_name(name) || !is_header_value(value)) return false;
  http.headers.emplace_back(std::move(name), value);
  return true;
}

// Lets the option of that name, which is there already, set something else as well.
void also(std::vector<Option>& known, const Option& option) {
  Option& first = *std::find_if(known.begin(), known.end(),
                                [&](const Option& other) { return other.name == option.name; });
  first.set = [set = first.set, also_set = option.set](const std::string& name,
                                                       const std::string& value) {
    return set(name, value) && also_set(name, value);
  };
}

}  // namespace

std::vector<Option> http_options(HttpOptions& http) {
  return {
      {std::string(kHeader), "a header: a name of letters, and a printable value in one line",
       [&http](const std::string& option, const std::string& value) {
         return take_header(option, value, http);
       },
       true},
      text_option("ca_file", "a path", http.ca_file),
      text_option("ca_path", "a path", http.ca_path),
      text_option("client_cert", "a path", http.client_cert),
      text_option("client_key", "a path", http.client_key),
      bool_option("insecure", http.insecure),
      bool_option("http2", http.http2),
      bool_option("header_everywhere", http.header_everywhere),
      bool_option("insecure_redirects", http.insecure_redirects),
      seconds_option("connect_timeout", http.connect_timeout, 0.001),
      seconds_option("stall_timeout", http.stall_timeout, 0.001),
      seconds_option("timeout", http.timeout, 0),
      number_option("connections", "a number from 1 to 256", http.connections, 1, 256),
      number_option("chunk_size", "a number of bytes, 65536 or more", http.chunk_size, 64 << 10,
                    std::uint64_t{1} << 40),
      number_option("retries", "a number from 0 to 1000", http.retries, 0, 1000),
      number_option("max_bandwidth", "a number of bytes per second, or 0 for no limit",
                    http.max_bandwidth, 0),
  };
}

std::vector<Option> s3_options(S3Options& s3) {
  return {
      secret_option("s3_access_key_id", s3.access_key_id),
      secret_option("s3_secret_access_key", s3.secret_access_key),
      secret_option("s3_session_token", s3.session_token),
      text_option("s3_endpoint", "a URL or a host", s3.endpoint),
      text_option("s3_region", "the name of a region", s3.region),
      text_option("s3_profile", "the name of a profile", s3.profile),
      text_option("s3_config_path", "a path", s3.config_path),
      bool_option("force_http", s3.force_http),
      {"s3_anonymous", "'true', 'false' or 'without_keys'",
       [&s3](const std::string&, const std::string& text) {
         s3.anonymous = text == "true";
         s3.anonymous_without_keys = text == "without_keys";
         return s3.anonymous || s3.anonymous_without_keys || text == "false";
       }},
      bool_option("s3_requester_pays", s3.requester_pays),
      text_option("s3_version_id", "the identifier of a version", s3.version_id),
      secret_option("s3_sse_customer_key", s3.sse_customer_key),
      {"s3_addressing", "'path' or 'virtual'",
       [&s3](const std::string&, const std::string& text) {
         s3.addressing = text;
         return text == "path" || text == "virtual";
       }},
      {"s3_signature_version", "'s3v4' or 's3'",
       [&s3](const std::string&, const std::string& text) {
         s3.signs_url = text == "s3";
         return s3.signs_url || text == "s3v4";
       }},
  };
}

void add_redis_options(std::vector<Option>& known, RedisOptions& redis) {
  also(known, seconds_option("connect_timeout", redis.connect_timeout, 0.001));
  also(known, seconds_option("stall_timeout", redis.stall_timeout, 0.001));
  also(known, number_option("connections", "", redis.connections, 1, 256));
  also(known, number_option("retries", "", redis.retries, 0, 1000));
  known.push_back(secret_option("redis_user", redis.user));
  known.push_back(secret_option("redis_password", redis.password));
  known.push_back(number_option("db", "the number of a database", redis.database, 0, 1 << 30));
}

void add_redis_save_options(std::vector<Option>& known, RedisOptions& redis) {
  known.push_back(number_option("ttl", "a number of seconds, or 0 for ever", redis.ttl, 0,
                                std::uint64_t{1} << 32));
  known.push_back(bool_option("overwrite", redis.overwrite));
}

}  // namespace tensorizer
