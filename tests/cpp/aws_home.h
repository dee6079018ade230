// A home directory and an environment without credentials, to which a test adds some.
#pragma once

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/aws/options.h"
#include "io_support.h"

extern char** environ;

namespace tensorizer::testing_support {

class AwsHome : public IoTest {
 protected:
  AwsHome() {
    std::vector<std::string> names;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string_view name(*entry, std::string_view(*entry).find('='));
      if (name.starts_with("AWS_")) names.emplace_back(name);
    }
    for (const std::string& name : names) set(name, std::nullopt);
    set("HOME", folder_.path().string());
    set("AWS_EC2_METADATA_DISABLED", "true");
    set("no_proxy", "127.0.0.1");
    fs::create_directory(folder_ / ".aws");
  }
  ~AwsHome() override {
    for (const auto& [name, value] : before_) put(name, value);
  }

  // Sets an environment variable, or removes it if `value` is null. The destructor restores it.
  void set(const std::string& name, std::optional<std::string> value) {
    const char* found = std::getenv(name.c_str());
    before_.try_emplace(name, found ? std::optional<std::string>(found) : std::nullopt);
    put(name, value);
  }

  // Returns the options for requests to a server of the test.
  static S3Options s3_options(const std::string& url) {
    S3Options options;
    options.access_key_id = "AKIA";
    options.secret_access_key = "secret";
    options.force_http = true;
    options.endpoint = url;
    return options;
  }

  void config(std::string_view text) { write_file(folder_ / ".aws/config", text); }
  void credentials(std::string_view text) { write_file(folder_ / ".aws/credentials", text); }
  void s3cfg(std::string_view text) { write_file(folder_ / ".s3cfg", text); }

 private:
  static void put(const std::string& name, const std::optional<std::string>& value) {
    if (value) {
      setenv(name.c_str(), value->c_str(), 1);
    } else {
      unsetenv(name.c_str());
    }
  }

  std::map<std::string, std::optional<std::string>> before_;
};

}  // namespace tensorizer::testing_support
