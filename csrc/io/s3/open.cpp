#include "io/s3/open.h"

#include "base/error.h"
#include "io/http/open.h"
#include "io/s3/sink.h"
#include "io/secret.h"
#include "io/uri.h"

namespace tensorizer {

namespace {

std::unique_ptr<HttpEndpoint> endpoint_of(const std::string& uri, const OptionList& given,
                                          const HttpOptions& http) {
  const auto [scheme, rest] = split_uri(uri);
  return s3_endpoint(scheme, parse_s3_name(scheme, rest), options_from(given, &s3_options), http);
}

}  // namespace

S3Name parse_s3_name(const std::string& scheme, std::string_view rest) {
  const std::size_t slash = rest.find('/');
  const std::string start = scheme + "://";
  const std::string label = quote(without_secrets(start + std::string(rest)), 4096);
  if (slash == 0 || slash == std::string_view::npos || slash + 1 == rest.size()) {
    throw Error(ErrorKind::InvalidArgument,
                label + " names no object: write " + start + "BUCKET/KEY");
  }
  if (rest.substr(0, slash).find('@') != std::string_view::npos) {
    throw Error(ErrorKind::InvalidArgument,
                label + " was given with a user or a password, which " + start +
                    " does not support: use the options 's3_access_key_id' and "
                    "'s3_secret_access_key'");
  }
  return {std::string(rest.substr(0, slash)), std::string(rest.substr(slash + 1))};
}

std::unique_ptr<Source> open_s3_source(const std::string& uri, const SourceOptions& options,
                                       Cancel& cancel) {
  const HttpOptions http = options_from(options.given, &http_options);
  return http_source(endpoint_of(uri, options.given, http), http, options, cancel);
}

std::unique_ptr<Sink> open_s3_sink(const std::string& uri, const SinkOptions& options, Cancel&) {
  const HttpOptions http = options_from(options.given, &http_options);
  return s3_sink(endpoint_of(uri, options.given, http), http, options.part_size);
}

}  // namespace tensorizer
