#include "base/error.h"
#include "io/http.h"
#include "io/local.h"
#include "io/redis.h"
#include "io/s3.h"
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

}  // namespace

std::unique_ptr<Source> open_source(const std::string& uri, const SourceOptions& options,
                                    Cancel& cancel) {
  cancel.check();
  const Uri split = split_uri(uri);
  if (split.scheme.empty()) return open_path_source(expand_home(split.rest));
  if (split.scheme == "file") return open_path_source(decode_file_uri(split.rest));
  if (split.scheme == "fd") return open_descriptor_source(parse_descriptor(split.rest), uri);
  if (split.scheme == "http" || split.scheme == "https") {
    return http_source(url_place(split.scheme + "://" + split.rest, options.http), options.http,
                       cancel);
  }
  if (split.scheme == "s3" || split.scheme == "gs") {
    return http_source(s3_place(split.scheme, parse_s3_name(split.rest), options.s3, options.http),
                       options.http, cancel);
  }
  if (split.scheme == "redis") return open_redis_source(uri, options.redis, cancel);
  if (split.scheme == "rediss") throw_no_tls();
  throw_unknown_scheme(split.scheme);
}

std::unique_ptr<Sink> open_sink(const std::string& uri, const SinkOptions& options,
                                Cancel& cancel) {
  cancel.check();
  const Uri split = split_uri(uri);
  if (split.scheme.empty()) return open_path_sink(expand_home(split.rest), options, cancel);
  if (split.scheme == "file") return open_path_sink(decode_file_uri(split.rest), options, cancel);
  if (split.scheme == "fd") {
    return open_descriptor_sink(parse_descriptor(split.rest), uri, options);
  }
  if (split.scheme == "http" || split.scheme == "https") {
    return http_sink(url_place(split.scheme + "://" + split.rest, options.http), options.http);
  }
  if (split.scheme == "s3" || split.scheme == "gs") {
    return s3_sink(s3_place(split.scheme, parse_s3_name(split.rest), options.s3, options.http),
                   options);
  }
  if (split.scheme == "redis") return open_redis_sink(uri, options.redis, cancel);
  if (split.scheme == "rediss") throw_no_tls();
  throw_unknown_scheme(split.scheme);
}

}  // namespace tensorizer
