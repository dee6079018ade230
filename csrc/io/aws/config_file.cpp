#include "io/aws/config_file.h"

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "base/error.h"
#include "base/text.h"
#include "io/aws/command.h"
#include "io/local/open.h"
#include "io/service_url.h"
#include "io/uri.h"

namespace tensorizer {

namespace {

constexpr std::size_t kLongestFile = 1 << 20;

std::string path_of(const char* variable, const char* usual) {
  const std::string path = environment(variable);
  return expand_home(path.empty() ? usual : path);
}

// Returns NAME for a section such as "profile NAME"; null if the section is of another kind.
std::optional<std::string> name_in(const std::string& section, const std::string& kind) {
  auto words = split_words(section);
  if (!words || words->size() != 2 || words->front() != kind) return std::nullopt;
  return std::move(words->back());
}

void add(IniSection& section, const IniSection& more) {
  for (const auto& [name, value] : more) section[name] = value;
}

}  // namespace

IniFile read_ini(const std::string& path, bool must_exist, Cancel& cancel) {
  std::unique_ptr<Source> source;
  try {
    // A path that begins with a slash or a dot is never a URI.
    source = open_local_source(path.starts_with('/') ? path : "./" + path, {}, cancel);
  } catch (const Error& error) {
    const bool is_absent =
        error.kind() == ErrorKind::NotFound || error.kind() == ErrorKind::PermissionDenied;
    if (is_absent && !must_exist) return {};
    throw;
  }
  // Reads one byte more than allowed, to detect a longer file.
  std::string text(kLongestFile + 1, '\0');
  text.resize(source->read_up_to(0, std::as_writable_bytes(std::span(text)), cancel));
  if (text.size() > kLongestFile) {
    throw Error(ErrorKind::InvalidFormat,
                source->label() + " is longer than 1 MiB, and so not a file of settings");
  }
  return parse_ini(text, source->label());
}

std::string AwsProfile::get(std::string_view name) const {
  const std::string value = get_setting(credentials, name);
  return value.empty() ? get_setting(config, name) : value;
}

AwsConfig::AwsConfig(const std::string& profile, Cancel& cancel) : name_(profile) {
  const IniFile config = read_ini(path_of("AWS_CONFIG_FILE", "~/.aws/config"), false, cancel);
  for (const auto& [section, settings] : config) {
    if (section == "default") add(profiles_[section].config, settings);
    if (const auto name = name_in(section, "profile")) add(profiles_[*name].config, settings);
    if (const auto name = name_in(section, "services")) add(services_[*name], settings);
  }
  const IniFile credentials =
      read_ini(path_of("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), false, cancel);
  for (const auto& [section, settings] : credentials) profiles_[section].credentials = settings;

  if (name_.empty()) name_ = environment({"AWS_DEFAULT_PROFILE", "AWS_PROFILE"});
  const bool is_named = !name_.empty();
  if (!is_named) name_ = "default";
  if (const AwsProfile* found = find(name_)) {
    profile_ = *found;
  } else if (is_named && name_ != "default") {
    throw Error(ErrorKind::InvalidArgument,
                "there is no profile " + quote(name_) + " in " +
                    quote(path_of("AWS_CONFIG_FILE", "~/.aws/config"), 4096) + " or " +
                    quote(path_of("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), 4096));
  }
}

const AwsProfile* AwsConfig::find(const std::string& name) const {
  const auto found = profiles_.find(name);
  return found == profiles_.end() ? nullptr : &found->second;
}

std::string AwsConfig::region() const {
  const std::string region = environment({"AWS_REGION", "AWS_DEFAULT_REGION"});
  return region.empty() ? profile_.get("region") : region;
}

std::string AwsConfig::ca_bundle() const {
  const std::string file = environment("AWS_CA_BUNDLE");
  return file.empty() ? expand_home(profile_.get("ca_bundle")) : file;
}

std::string AwsConfig::endpoint(const std::string& service) const {
  if (ignores_endpoints()) return {};
  for (const std::string& name : {"AWS_ENDPOINT_URL_" + service, std::string("AWS_ENDPOINT_URL")}) {
    if (const std::string url = environment(name.c_str()); !url.empty()) {
      return full_service_url(url, name);
    }
  }
  std::string url = service_endpoint(lower_case(service));
  if (url.empty()) url = profile_.get("endpoint_url");
  return url.empty() ? url : full_service_url(url, "endpoint_url of profile " + quote(name_));
}

bool AwsConfig::ignores_endpoints() const {
  const std::string given = environment("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
  return lower_case(given.empty() ? profile_.get("ignore_configured_endpoint_urls") : given) ==
         "true";
}

std::string AwsConfig::service_endpoint(const std::string& service) const {
  const std::string section = profile_.get("services");
  if (section.empty()) return {};
  const auto found = services_.find(section);
  if (found == services_.end()) {
    throw Error(ErrorKind::InvalidArgument, "profile " + quote(name_) + " names the section " +
                                                quote("services " + section) +
                                                ", which does not exist");
  }
  return get_setting(found->second, service + ".endpoint_url");
}

}  // namespace tensorizer
