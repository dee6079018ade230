// Opens objects in S3 and compatible stores.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "io/aws/credentials.h"
#include "io/aws/options.h"
#include "io/http/endpoint.h"
#include "io/http/options.h"
#include "io/place_kind.h"

namespace tensorizer {

extern const PlaceKind s3_objects;  // s3:// and gs://

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

}  // namespace tensorizer
