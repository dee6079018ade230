// Objects in S3, and in what speaks like it.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/cancel.h"
#include "io/aws/options.h"
#include "io/http/endpoint.h"
#include "io/http/options.h"
#include "io/options.h"
#include "io/sink.h"
#include "io/source.h"

namespace tensorizer {

// What follows "s3://", or another scheme of the same: a bucket and a key, which is taken as it is.
struct S3Name {
  std::string bucket;
  std::string key;
};
S3Name parse_s3_name(const std::string& scheme, std::string_view rest);

// Requests for an object, signed with what the options, the environment or the machine have.
// `scheme` is "s3", or "gs" for Google's storage.
std::unique_ptr<HttpEndpoint> s3_endpoint(const std::string& scheme, const S3Name& name,
                                          const S3Options& options, const HttpOptions& http);

// `uri`: s3:// or gs://.
std::unique_ptr<Source> open_s3_source(const std::string& uri, const SourceOptions& options,
                                       Cancel& cancel);
// Uploads an object: in parts, or in one request where it is small.
std::unique_ptr<Sink> open_s3_sink(const std::string& uri, const SinkOptions& options,
                                   Cancel& cancel);

}  // namespace tensorizer
