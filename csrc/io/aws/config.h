// What the caller's options, the environment, ~/.aws and s3cmd's file say about S3.
//
// They are asked in the order in which AWS's own tools ask: options, the environment, the profile;
// one that the caller names comes in the place of the environment's keys. s3cmd's file is ~/.s3cfg,
// which comes behind them, or the one that the caller names, which comes before the environment.
// ~/.s3cfg speaks of a service together with the keys to it, so it counts only where its keys are
// the ones that are used.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/cancel.h"
#include "io/aws/config_file.h"
#include "io/aws/options.h"

namespace tensorizer {

struct S3Settings {
  std::string endpoint;     // a URL with its scheme; empty: AWS's own
  bool force_http = false;  // no TLS there either
  std::string region;       // empty: unknown
  std::string addressing;   // "path", "virtual", or empty: what fits the endpoint
};

// s3cmd's own file. What is empty is not in it.
struct S3cmdFile {
  std::string access_key, secret_key, access_token;
  std::string host_base, bucket_location;
  bool use_http = false;

  bool has_keys() const { return !access_key.empty() && !secret_key.empty(); }
};

// Returns the section [default] of such a file, with its values out of their quotes; null where
// there is none. Throws Error(NotFound) where there is no such file but must be one.
std::optional<IniSection> read_s3cmd_settings(const std::string& path, bool must_exist,
                                              Cancel& cancel);
S3cmdFile read_s3cmd_file(const std::string& path, bool must_exist, Cancel& cancel);

// Where credentials come from.
enum class S3Origin : std::uint8_t {
  Anonymous,
  Options,
  Environment,
  Profile,
  WebIdentity,  // as the environment says it
  S3cmd,
  Container,
  Metadata,  // of the machine, which may have none
};

// Everything there is to know without asking anybody, read once.
struct S3Config {
  // Throws Error(InvalidArgument) where options or files contradict themselves, NotFound where a
  // file is missing that was asked for.
  S3Config(const S3Options& options, Cancel& cancel);

  S3Origin origin() const;
  // Throws Error(InvalidArgument) for what is no region, or names a section that is not there.
  S3Settings settings() const;

  S3Options options;
  AwsConfig aws;
  S3cmdFile s3cmd;
};

}  // namespace tensorizer
