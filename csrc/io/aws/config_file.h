// What the environment and the files in ~/.aws say to AWS's own tools, and so to us.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/cancel.h"
#include "io/aws/ini.h"

namespace tensorizer {

// A variable of the environment. An empty one is as good as none.
std::string environment(const char* name);

// A file of settings; empty where there is none that this process may read, unless there must be
// one. Throws Error(InvalidFormat) for what is no such file.
IniFile read_ini(const std::string& path, bool must_exist, Cancel& cancel);

struct AwsProfile {
  IniSection credentials;  // of the file `credentials`
  IniSection config;       // of the file `config`

  // A setting, of the first of these that has it; empty where there is none.
  std::string get(std::string_view name) const;
};

// Read once, from the files that AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE name, or from
// ~/.aws.
class AwsConfig {
 public:
  // `profile` is the one that the caller wants, or else AWS_PROFILE, or else "default", which need
  // not exist. Throws Error(InvalidArgument) for any other that does not.
  AwsConfig(const std::string& profile, Cancel& cancel);

  const std::string& profile_name() const { return name_; }
  const AwsProfile& profile() const { return profile_; }
  // Another profile, or null.
  const AwsProfile* find(const std::string& name) const;

  // The region, or empty.
  std::string region() const;
  // Where a service is, of which the environment speaks in capitals: the URL for this service
  // alone, or for all of them; empty where AWS's own address holds.
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
