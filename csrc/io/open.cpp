#include "base/error.h"
#include "io/http.h"
#include "io/local.h"
#include "io/uri.h"

namespace tensorizer {

namespace {

// The scheme alone is named: what follows it may hold a password.
[[noreturn]] void throw_unknown_scheme(const std::string& scheme, const std::string& known) {
  throw Error(ErrorKind::InvalidArgument,
              "the scheme " + quote(scheme) + " is unknown; known are a plain path, " + known);
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
  throw_unknown_scheme(split.scheme, "file://, fd:N, http:// and https://");
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
  throw_unknown_scheme(split.scheme, "file:// and fd:N");
}

}  // namespace tensorizer
