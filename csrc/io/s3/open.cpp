#include "io/s3/open.h"

#include "base/error.h"
#include "io/aws/config_file.h"
#include "io/http/client.h"
#include "io/http/open.h"
#include "io/http/operation.h"
#include "io/http/swap.h"
#include "io/s3/receipt.h"
#include "io/s3/sink.h"
#include "io/secret.h"
#include "io/uri.h"

namespace tensorizer {

namespace {

// Returns the options for requests, with the certificate authorities that AWS's settings name.
HttpOptions http_of(const OptionList& given, Cancel& cancel) {
  HttpOptions http = options_from(given, &http_options);
  if (http.tls.ca_file.empty()) {
    const std::string profile = options_from(given, &s3_options).profile;
    http.tls.ca_file = AwsConfig(profile, cancel).ca_bundle();
  }
  return http;
}

template <typename Options>
HttpAccess access_to(const std::string& uri, const Options& options, Cancel& cancel) {
  const HttpOptions http = http_of(options.given, cancel);
  const auto [scheme, rest] = split_uri(uri);
  const S3Options s3 = options_from(options.given, &s3_options);
  std::shared_ptr<S3CredentialsChain> credentials;
  if (options.access) {
    credentials = options.access->template get<S3CredentialsChain>(
        [&] { return std::make_shared<S3CredentialsChain>(s3, http); });
  }
  return {s3_endpoint(scheme, parse_s3_name(scheme, rest), s3, http, std::move(credentials)),
          http_pool(options.access.get(), http)};
}

std::string s3_sibling(const std::string& uri, const std::string& name, const OptionList& given) {
  if (!options_from(given, &s3_options).version_id.empty()) {
    throw Error(ErrorKind::InvalidArgument,
                "option 's3_version_id' is the version of one object, and " +
                    quote(without_secrets(uri), 4096) +
                    " needs the objects beside it: leave the option out");
  }
  return key_beside(uri, name);
}

std::unique_ptr<Source> open_s3_source(const std::string& uri, const SourceOptions& options,
                                       Cancel& cancel) {
  return http_source(access_to(uri, options, cancel), options, cancel);
}

std::unique_ptr<Sink> open_s3_sink(const std::string& uri, const SinkOptions& options,
                                   Cancel& cancel) {
  return s3_sink(access_to(uri, options, cancel), options.part_size);
}

std::unique_ptr<SharedSink> open_shared_s3_sink(const std::string& uri,
                                                const std::optional<std::string>& joined,
                                                const SinkOptions& options, Cancel& cancel) {
  return shared_s3_sink(access_to(uri, options, cancel), joined);
}

void remove_s3_object(const std::string& uri, const SinkOptions& options, Cancel& cancel) {
  HttpClient client(access_to(uri, options, cancel));
  remove_file(client, cancel);
}

bool swap_s3_object(const std::string& uri, std::optional<ConstBytes> known, ConstBytes next,
                    const SinkOptions& options, Cancel& cancel) {
  HttpPut put{{"Content-Type: application/octet-stream"},
              [](const HttpAnswer& answer, std::string_view text) {
                return fault_of_answer(answer, text, "");
              }};
  if (known) put.refusals.push_back(404);  // the object is gone
  return swap_http_file(access_to(uri, options, cancel), std::move(put), known, next, cancel);
}

constexpr UriScheme kSchemes[] = {{"s3", "s3://"}, {"gs", "gs://"}};

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

const PlaceKind s3_objects{
    .folder = "s3",
    .schemes = kSchemes,
    .options = &checks<&s3_options>,
    .open_source = &open_s3_source,
    .open_sink = &open_s3_sink,
    .open_shared_sink = &open_shared_s3_sink,
    .sibling = &s3_sibling,
    .file_name = &last_of_key,
    .remove = &remove_s3_object,
    .swap = &swap_s3_object,
};

}  // namespace tensorizer
