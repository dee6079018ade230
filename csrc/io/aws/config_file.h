// Reads the environment variables and the files in ~/.aws, as AWS's own tools do.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/cancel.h"
#include "io/aws/ini.h"

namespace tensorizer {

// Returns a file of settings; empty if there is none that this process may read, unless
// `must_exist`. Throws Error(InvalidFormat) if it is malformed or longer than 1 MiB.
IniFile read_ini(const std::string& path, bool must_exist, Cancel& cancel);

struct AwsProfile {
  IniSection credentials;  // of the file `credentials`
  IniSection config;       // of the file `config`

  // Returns a setting from `credentials`, or else from `config`; empty if neither has it.
  std::string get(std::string_view name) const;
};

// The files that AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE name, or those in ~/.aws. They are
// read once, in the constructor.
class AwsConfig {
 public:
  // Chooses the profile: `profile`, or else AWS_DEFAULT_PROFILE, AWS_PROFILE or "default". Throws
  // Error(InvalidArgument) if it does not exist; "default" need not exist.
  AwsConfig(const std::string& profile, Cancel& cancel);

  const std::string& profile_name() const { return name_; }
  const AwsProfile& profile() const { return profile_; }
  // Returns any profile by its name, or null.
  const AwsProfile* find(const std::string& name) const;

  // Returns the region, or an empty string.
  std::string region() const;
  // Returns the file of certificate authorities for requests to services, or an empty string.
  std::string ca_bundle() const;
  // Returns the configured URL of a service, or the one for all services; empty if AWS's own
  // address applies. `service`: in capitals, as in the name of the environment variable.
  std::string endpoint(const std::string& service) const;

 private:
  bool ignores_endpoints() const;
  std::string service_endpoint(const std::string& service) const;

  std::map<std::string, AwsProfile, std::less<>> profiles_;
  std::map<std::string, IniSection, std::less<>> services_;
  std::string name_;
  AwsProfile profile_;
};

}  // namespace tensorizer
