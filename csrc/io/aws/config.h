// The settings for S3 in the caller's options, the environment, ~/.aws and s3cmd's file.
//
// The order is that of AWS's own tools: options, environment, profile. If the caller names a
// profile, the keys in the environment are ignored. A file of s3cmd that the caller names
// (s3_config_path) comes before the environment, and ~/.s3cfg comes last. ~/.s3cfg describes a
// service together with its keys, so its settings are used only if its keys are used.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/cancel.h"
#include "io/aws/config_file.h"
#include "io/aws/options.h"

namespace tensorizer {

struct S3Settings {
  std::string endpoint;     // a URL with its scheme; empty: AWS
  bool force_http = false;  // without TLS, also for AWS
  std::string region;       // empty: unknown
  std::string addressing;   // "path", "virtual", or empty: chosen by the endpoint
};

// The settings in a file of s3cmd. Empty if they are not in it.
struct S3cmdFile {
  std::string access_key, secret_key, access_token;
  std::string host_base, bucket_location;
  bool use_http = false;

  bool has_keys() const { return !access_key.empty() && !secret_key.empty(); }
};

// Returns the section [default] of such a file, with quotes around values removed; null if there is
// no such section. Throws Error(NotFound) if `must_exist` and there is no file.
std::optional<IniSection> read_s3cmd_settings(const std::string& path, bool must_exist,
                                              Cancel& cancel);
S3cmdFile read_s3cmd_file(const std::string& path, bool must_exist, Cancel& cancel);

// Where credentials come from.
enum class S3Origin : std::uint8_t {
  Anonymous,
  Options,
  Environment,
  Profile,
  WebIdentity,  // from the environment
  S3cmd,
  Container,
  Metadata,  // of the machine, which may not have the service
};

// All settings that can be read without a request to a server or a program. They are read once, in
// the constructor.
struct S3Config {
  // Throws Error(InvalidArgument) if options or files contradict themselves, and NotFound if a file
  // is missing that the caller named.
  S3Config(const S3Options& options, Cancel& cancel);

  S3Origin origin() const;
  // Throws Error(InvalidArgument) for a malformed region or endpoint, and for a missing section.
  S3Settings settings() const;

  S3Options options;
  AwsConfig aws;
  S3cmdFile s3cmd;
};

}  // namespace tensorizer
