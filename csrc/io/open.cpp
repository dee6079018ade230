#include "io/http/open.h"
#include "base/error.h"
#include "io/local/open.h"
#include "io/redis/open.h"
#include "io/s3/open.h"
#include "io/uri.h"

namespace tensorizer {

namespace {

// The scheme alone is named: what follows it may hold a password.
[[noreturn]] void throw_unknown_scheme(const std::string& scheme) {
  throw Error(ErrorKind::InvalidArgument,
              "the scheme " + quote(scheme) +
                  " is unknown; known are a plain path, file://, fd:N, http://, https://, s3://, "
                  "gs:// and redis://");
}

[[noreturn]] void throw_no_tls() {
  throw Error(
      ErrorKind::InvalidArgument,
      "rediss:// is Redis over TLS, which is not spoken here: use redis:// within a network "
      "that you trust, or through a tunnel (stunnel, ssh)");
}

bool is_s3(const Uri& uri) { return uri.scheme == "s3" || uri.scheme == "gs"; }

// Other options of other places change nothing about a file; these would have to.
void check_option(bool given, const char* option, const char* where) {
  if (!given) return;
  throw Error(ErrorKind::InvalidArgument,
              std::string("option '") + option + "' means something " + where + " only");
}

}  // namespace

std::unique_ptr<Source> open_source(const std::string& uri, const SourceOptions& options,
                                    Cancel& cancel) {
  cancel.check();
  const Uri split = split_uri(uri);
  check_option(!options.s3.version_id.empty() && !is_s3(split), "s3_version_id", "for s3://");
  if (split.scheme.empty()) return open_path_source(expand_home(split.rest));
  if (split.scheme == "file") return open_path_source(decode_file_uri(split.rest));
  if (split.scheme == "fd") return open_descriptor_source(parse_descriptor(split.rest), uri);
  if (split.scheme == "http" || split.scheme == "https") {
    return http_source(url_endpoint(split.scheme + "://" + split.rest, options.http), options,
                       cancel);
  }
  if (is_s3(split)) {
    const S3Name name = parse_s3_name(split.scheme, split.rest);
    return http_source(s3_endpoint(split.scheme, name, options.s3, options.http), options, cancel);
  }
  if (split.scheme == "redis") return open_redis_source(uri, options.redis, cancel);
  if (split.scheme == "rediss") throw_no_tls();
  throw_unknown_scheme(split.scheme);
}

std::unique_ptr<Sink> open_sink(const std::string& uri, const SinkOptions& options,
                                Cancel& cancel) {
  cancel.check();
  const Uri split = split_uri(uri);
  const bool is_redis = split.scheme == "redis";
  check_option(!options.s3.version_id.empty(), "s3_version_id", "where an object is loaded");
  check_option(!options.redis.overwrite && !is_redis, "overwrite", "for redis://");
  check_option(options.redis.ttl != 0 && !is_redis, "ttl", "for redis://");
  if (split.scheme.empty()) return open_path_sink(expand_home(split.rest), options, cancel);
  if (split.scheme == "file") return open_path_sink(decode_file_uri(split.rest), options, cancel);
  if (split.scheme == "fd") {
    return open_descriptor_sink(parse_descriptor(split.rest), uri, options);
  }
  if (split.scheme == "http" || split.scheme == "https") {
    return http_sink(url_endpoint(split.scheme + "://" + split.rest, options.http), options.http);
  }
  if (is_s3(split)) {
    const S3Name name = parse_s3_name(split.scheme, split.rest);
    return s3_sink(s3_endpoint(split.scheme, name, options.s3, options.http), options);
  }
  if (is_redis) return open_redis_sink(uri, options.redis, cancel);
  if (split.scheme == "rediss") throw_no_tls();
  throw_unknown_scheme(split.scheme);
}

}  // namespace tensorizer
