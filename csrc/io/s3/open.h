// Opens objects in S3 and compatible stores.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/cancel.h"
#include "io/aws/credentials.h"
#include "io/aws/options.h"
#include "io/http/endpoint.h"
#include "io/http/options.h"
#include "io/options.h"
#include "io/shared_sink.h"
#include "io/sink.h"
#include "io/source.h"

namespace tensorizer {

// The bucket and the key in a URI. Neither is unescaped.
struct S3Name {
  std::string bucket;
  std::string key;
};
// Parses the URI `scheme` + "://" + `rest`. Throws InvalidArgument if it names no object or has a
// user.
S3Name parse_s3_name(const std::string& scheme, std::string_view rest);

// Returns the endpoint of an object. It signs requests with credentials from the options, the
// environment, files or the machine, or with `credentials` that other endpoints of the same options
// use. `scheme` is "s3", or "gs" for Google's storage.
std::unique_ptr<HttpEndpoint> s3_endpoint(
    const std::string& scheme, const S3Name& name, const S3Options& options,
    const HttpOptions& http, std::shared_ptr<S3CredentialsChain> credentials = nullptr);

// Returns the URI of the object `name` beside the one that `uri` names (sibling_uri() in
// io/open.h).
std::string s3_sibling(const std::string& uri, const std::string& name, const OptionList& given);

// Returns the name of an object behind the last slash of its key (file_name_of() in io/open.h).
std::optional<std::string> s3_file_name(const std::string& uri);

// `uri`: s3:// or gs://.
std::unique_ptr<Source> open_s3_source(const std::string& uri, const SourceOptions& options,
                                       Cancel& cancel);
// Returns a sink that uploads an object in parts, or in one request if it is small.
std::unique_ptr<Sink> open_s3_sink(const std::string& uri, const SinkOptions& options,
                                   Cancel& cancel);
// Opens a sink that several processes write (open_shared_sink() in io/open.h).
std::unique_ptr<SharedSink> open_shared_s3_sink(const std::string& uri,
                                                const std::optional<std::string>& joined,
                                                const SinkOptions& options, Cancel& cancel);
// Removes an object (remove_file() in io/open.h).
void remove_s3_object(const std::string& uri, const SinkOptions& options, Cancel& cancel);

}  // namespace tensorizer
