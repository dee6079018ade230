#include "io/aws/config.h"

#include <algorithm>

#include "base/environment.h"
#include "base/error.h"
#include "base/text.h"
#include "io/service_url.h"
#include "io/uri.h"

namespace tensorizer {

namespace {

const std::string& first_of(const std::string& a, const std::string& b) {
  return a.empty() ? b : a;
}

// Throws if only one of the two is given.
void check_pair(const std::string& first, const std::string& second, const std::string& names) {
  if (first.empty() == second.empty()) return;
  throw Error(ErrorKind::InvalidArgument, "only one of " + names + " is given: both are needed");
}

// Returns true if the profile says how to get credentials.
bool has_credentials(const AwsProfile& profile) {
  for (const char* name :
       {"role_arn", "web_identity_token_file", "credential_process", "aws_access_key_id",
        "aws_secret_access_key", "sso_session", "sso_account_id", "login_session"}) {
    if (!profile.get(name).empty()) return true;
  }
  return false;
}

// Returns true if the profile's role comes before a web identity of the environment, as in AWS's
// tools.
bool takes_role(const AwsProfile& profile) {
  return !profile.get("role_arn").empty() && profile.get("web_identity_token_file").empty();
}

// Removes quotes around a value, as s3cmd does.
std::string unquoted(const std::string& value) {
  const bool quoted = value.size() >= 2 && value.starts_with('"') && value.ends_with('"');
  return quoted ? value.substr(1, value.size() - 2) : value;
}

// Translates the old names of the first two regions.
std::string region_of(const std::string& location) {
  if (location == "US") return "us-east-1";
  return location == "EU" ? "eu-west-1" : location;
}

// Throws for a region that must not become part of a host name or a header.
void check_region(const std::string& region) {
  const bool is_plain = std::all_of(region.begin(), region.end(), [](char c) {
    return is_letter(c) || is_digit(c) || c == '-' || c == '_' || c == '.';
  });
  if (is_plain) return;
  throw Error(ErrorKind::InvalidArgument, quote(region) + " is not the name of a region");
}

}  // namespace

std::optional<IniSection> read_s3cmd_settings(const std::string& path, bool must_exist,
                                              Cancel& cancel) {
  IniFile file = read_ini(expand_home(path), must_exist, cancel);
  const auto section = file.find("default");
  if (section == file.end()) return std::nullopt;
  for (auto& [name, value] : section->second) value = unquoted(value);
  return std::move(section->second);
}

S3cmdFile read_s3cmd_file(const std::string& path, bool must_exist, Cancel& cancel) {
  const std::optional<IniSection> settings = read_s3cmd_settings(path, must_exist, cancel);
  if (!settings) return {};
  const auto get = [&](std::string_view name) { return get_setting(*settings, name); };
  S3cmdFile result;
  result.access_key = get("access_key");
  result.secret_key = get("secret_key");
  result.access_token = get("access_token");
  check_pair(result.access_key, result.secret_key,
             "access_key and secret_key in " + quote(path, 4096));
  result.host_base = get("host_base");
  // The default in every such file that was made for AWS, where this host serves all regions.
  if (result.host_base == "s3.amazonaws.com") result.host_base.clear();
  result.use_http = lower_case(get("use_https")) == "false";
  result.bucket_location = region_of(get("bucket_location"));
  return result;
}

S3Config::S3Config(const S3Options& given, Cancel& cancel)
    : options(given), aws(given.profile, cancel) {
  check_pair(options.access_key_id, options.secret_access_key,
             "the options s3_access_key_id and s3_secret_access_key");
  if (!options.config_path.empty()) {
    s3cmd = read_s3cmd_file(options.config_path, true, cancel);
  } else if (origin() > S3Origin::WebIdentity) {
    s3cmd = read_s3cmd_file("~/.s3cfg", false, cancel);
  }
}

S3Origin S3Config::origin() const {
  if (options.anonymous) return S3Origin::Anonymous;
  if (!options.access_key_id.empty()) return S3Origin::Options;
  if (!options.config_path.empty() && s3cmd.has_keys()) return S3Origin::S3cmd;
  const bool asks_environment = options.profile.empty();
  if (asks_environment) {
    const std::string key = environment("AWS_ACCESS_KEY_ID");
    check_pair(key, environment("AWS_SECRET_ACCESS_KEY"),
               "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment");
    if (!key.empty()) return S3Origin::Environment;
  }
  if (takes_role(aws.profile())) return S3Origin::Profile;
  if (asks_environment && !environment("AWS_WEB_IDENTITY_TOKEN_FILE").empty()) {
    return S3Origin::WebIdentity;
  }
  if (has_credentials(aws.profile())) return S3Origin::Profile;
  if (s3cmd.has_keys()) return S3Origin::S3cmd;
  const bool has_container = !environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI").empty() ||
                             !environment("AWS_CONTAINER_CREDENTIALS_FULL_URI").empty();
  return has_container ? S3Origin::Container : S3Origin::Metadata;
}

S3Settings S3Config::settings() const {
  const bool is_named = !options.config_path.empty();
  const S3cmdFile file = is_named || origin() == S3Origin::S3cmd ? s3cmd : S3cmdFile();
  // The file comes before the settings of AWS's tools if the caller named it, otherwise after them.
  const auto choose = [&](const std::string& option, const std::string& in_file,
                          const std::string& of_aws) {
    if (!option.empty()) return option;
    return is_named ? first_of(in_file, of_aws) : first_of(of_aws, in_file);
  };
  S3Settings settings;
  settings.endpoint = choose(options.endpoint, file.host_base,
                             options.endpoint.empty() ? aws.endpoint("S3") : std::string());
  settings.force_http =
      options.force_http || (file.use_http && settings.endpoint == file.host_base);
  if (!settings.endpoint.empty()) {
    settings.endpoint = service_url(
        settings.endpoint, settings.force_http,
        options.endpoint.empty() ? "host_base of s3cmd's file" : "option 's3_endpoint'");
  }
  settings.region = choose(options.region, file.bucket_location, aws.region());
  check_region(settings.region);
  settings.addressing = options.addressing;
  const std::string style = aws.profile().get("s3.addressing_style");
  if (settings.addressing.empty() && (style == "path" || style == "virtual")) {
    settings.addressing = style;
  }
  return settings;
}

}  // namespace tensorizer
