#include "io/aws/credential_chain.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/environment.h"
#include "base/error.h"
#include "base/timestamp.h"
#include "io/aws/config.h"
#include "io/aws/json.h"
#include "io/aws/metadata_service.h"
#include "io/aws/sts.h"
#include "io/http/open.h"
#include "io/secret.h"

namespace tensorizer {

namespace {

bool is_cut_short(const Error& error) { return error.kind() == ErrorKind::Cancelled; }

class Finder {
 public:
  Finder(const S3Options& s3, const HttpOptions& http, Cancel& cancel)
      : config_(s3, cancel), http_(http), cancel_(cancel) {}

  S3Credentials find() {
    switch (config_.origin()) {
      case S3Origin::Anonymous:
        return nobody();
      case S3Origin::Options:
        return from_options();
      case S3Origin::Environment:
        return from_environment();
      case S3Origin::Profile:
        return from_profile(config_.aws.profile_name(), config_.aws.profile());
      case S3Origin::WebIdentity:
        return from_web_identity();
      case S3Origin::S3cmd:
        return {config_.s3cmd.access_key, config_.s3cmd.secret_key, config_.s3cmd.access_token};
      case S3Origin::Container:
        return container_credentials(http_, cancel_);
      case S3Origin::Metadata:
        break;
    }
    return from_machine();
  }

 private:
  static S3Credentials nobody() {
    S3Credentials credentials;
    credentials.anonymous = true;
    return credentials;
  }

  S3Credentials from_options() const {
    const S3Options& given = config_.options;
    return {resolve_secret(given.access_key_id), resolve_secret(given.secret_access_key),
            resolve_secret(given.session_token)};
  }

  static S3Credentials from_environment() {
    S3Credentials credentials{environment("AWS_ACCESS_KEY_ID"),
                              environment("AWS_SECRET_ACCESS_KEY"),
                              environment({"AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN"})};
    credentials.expires = parse_timestamp(environment("AWS_CREDENTIAL_EXPIRATION"));
    return credentials;
  }

  S3Credentials from_web_identity() {
    const AwsRole role{environment("AWS_ROLE_ARN"), environment("AWS_ROLE_SESSION_NAME")};
    return with_token(role, environment("AWS_WEB_IDENTITY_TOKEN_FILE"),
                      "AWS_WEB_IDENTITY_TOKEN_FILE is set, and AWS_ROLE_ARN is not");
  }

  S3Credentials from_profile(const std::string& name, const AwsProfile& profile) {
    const std::string label = "profile " + quote(name);
    const std::string token_file = profile.get("web_identity_token_file");
    const bool is_source = !visited_.empty();
    const bool takes_role = !profile.get("role_arn").empty() && token_file.empty();
    if (takes_role && !(is_source && has_keys(profile))) return with_role(name, profile);
    if (!token_file.empty()) {
      return with_token(role_of(profile), token_file,
                        label + " has a web_identity_token_file and no role_arn");
    }
    if (has_keys(profile.credentials)) return keys_in(profile.credentials, label);
    if (const std::string line = profile.get("credential_process"); !line.empty()) {
      return from_process(line, "the credential_process of " + label);
    }
    if (has_keys(profile.config)) return keys_in(profile.config, label);
    throw Error(ErrorKind::PermissionDenied, why_not(name, profile));
  }

  static std::string why_not(const std::string& name, const AwsProfile& profile) {
    const std::string label = "profile " + quote(name);
    const bool logs_in =
        !(profile.get("sso_session") + profile.get("sso_account_id") + profile.get("login_session"))
             .empty();
    if (!logs_in) return label + " has no credentials";
    return label +
           " needs an interactive login, which only AWS's own tools can do: use another profile " +
           "that has credential_process = aws configure export-credentials " + "--profile NAME";
  }

  static bool has_keys(const IniSection& section) {
    return section.count("aws_access_key_id") + section.count("aws_secret_access_key") > 0;
  }
  static bool has_keys(const AwsProfile& profile) {
    return has_keys(profile.credentials) || has_keys(profile.config);
  }

  static S3Credentials keys_in(const IniSection& section, const std::string& label) {
    const auto get = [&](std::string_view name) { return get_setting(section, name); };
    const std::string old_token = get("aws_security_token");
    S3Credentials credentials{get("aws_access_key_id"), get("aws_secret_access_key"),
                              old_token.empty() ? get("aws_session_token") : old_token};
    if (!credentials.key_id.empty() && !credentials.secret.empty()) return credentials;
    throw Error(ErrorKind::InvalidArgument,
                label + " has only one of aws_access_key_id and aws_secret_access_key");
  }

  static AwsRole role_of(const AwsProfile& profile) {
    return {profile.get("role_arn"), profile.get("role_session_name"), profile.get("external_id"),
            profile.get("duration_seconds")};
  }

  StsService sts() const { return {config_.aws.endpoint("STS"), config_.settings().region, http_}; }

  S3Credentials with_token(const AwsRole& role, const std::string& token_file,
                           const std::string& without_role) {
    if (role.arn.empty()) throw Error(ErrorKind::InvalidArgument, without_role);
    return assume_role_with_token(sts(), role, resolve_secret("file:" + token_file), cancel_);
  }

  S3Credentials with_role(const std::string& name, const AwsProfile& profile) {
    const std::string label = "profile " + quote(name);
    const std::string source = profile.get("source_profile");
    const std::string other_source = profile.get("credential_source");
    if (source.empty() == other_source.empty()) {
      throw Error(ErrorKind::InvalidArgument,
                  label +
                      " has a role_arn, and must also have either a source_profile or a "
                      "credential_source");
    }
    if (!profile.get("mfa_serial").empty()) {
      throw Error(ErrorKind::InvalidArgument,
                  label + " has an mfa_serial, but there is no way to enter an MFA code here");
    }
    const S3Credentials by = source.empty() ? from_source(other_source, label)
                                            : from_source_profile(source, name, label);
    return assume_role(sts(), role_of(profile), by, cancel_);
  }

  S3Credentials from_source_profile(const std::string& source, const std::string& name,
                                    const std::string& label) {
    const AwsProfile* profile = config_.aws.find(source);
    visited_.push_back(name);
    const bool goes_round = std::find(visited_.begin(), visited_.end(), source) != visited_.end();
    const bool has_own_keys = source == name && profile != nullptr && has_keys(*profile);
    if (profile == nullptr || (goes_round && !has_own_keys)) {
      throw Error(ErrorKind::InvalidArgument,
                  label + " has the source_profile " + quote(source) +
                      (profile == nullptr ? ", which does not exist" : ", which leads back to it"));
    }
    return from_profile(source, *profile);
  }

  S3Credentials from_source(const std::string& source, const std::string& label) {
    if (source == "Environment") {
      S3Credentials credentials = from_environment();
      if (!credentials.key_id.empty() && !credentials.secret.empty()) return credentials;
      throw Error(ErrorKind::PermissionDenied,
                  label + " takes credentials from the environment, which has none");
    }
    if (source == "EcsContainer") return container_credentials(http_, cancel_);
    if (source == "Ec2InstanceMetadata") return machine_credentials(cancel_);
    throw Error(ErrorKind::InvalidArgument,
                label + " has the credential_source " + quote(source) +
                    ", and must have Environment, EcsContainer or Ec2InstanceMetadata");
  }

  S3Credentials from_process(const std::string& line, const std::string& label) {
    const auto words = split_words(line);
    if (!words || words->empty()) {
      throw Error(ErrorKind::InvalidArgument,
                  label + " is not a command, or has a quote that is not closed");
    }
    const std::string output = run_command(*words, label, credential_command_limits, cancel_);
    const std::optional<JsonObject> object = parse_json_object(output);
    if (!object) throw Error(ErrorKind::InvalidFormat, label + " does not print a JSON object");
    const auto version = object->find("Version");
    if (version == object->end() || version->second != "1") {
      throw Error(ErrorKind::InvalidFormat,
                  label + " prints a JSON object whose \"Version\" is not 1");
    }
    return credentials_in(*object, label);
  }

  // The last source, which most machines do not have.
  S3Credentials from_machine() {
    try {
      return machine_credentials(cancel_);
    } catch (const Error& error) {
      if (is_cut_short(error)) throw;
      if (config_.options.anonymous_without_keys) return nobody();
      const std::string elsewhere =
          config_.options.profile.empty()
              ? "AWS_ACCESS_KEY_ID and AWS_WEB_IDENTITY_TOKEN_FILE in the environment, "
              : "";
      throw Error(ErrorKind::PermissionDenied,
                  "there are no credentials for S3 in the options (s3_access_key_id), " +
                      elsewhere + "profile " + quote(config_.aws.profile_name()) + " of ~/.aws, " +
                      s3cmd_name() +
                      ", AWS_CONTAINER_CREDENTIALS_FULL_URI and the machine's metadata (" +
                      std::string(error.message()) +
                      "); public objects can be loaded with the option s3_anonymous");
    }
  }

  std::string s3cmd_name() const {
    const std::string& path = config_.options.config_path;
    return path.empty() ? "~/.s3cfg" : quote(path, 4096);
  }

  const S3Config config_;
  const HttpOptions& http_;
  Cancel& cancel_;
  std::vector<std::string> visited_;  // profiles whose source_profile is being resolved
};

// Throws for credentials that cannot be sent in headers, and for empty keys.
void check(const S3Credentials& credentials) {
  for (const std::string* text :
       {&credentials.key_id, &credentials.secret, &credentials.session_token}) {
    if (is_header_value(*text)) continue;
    throw Error(ErrorKind::InvalidArgument,
                "the credentials for S3 must each be one line of printable text");
  }
  if (!credentials.anonymous && (credentials.key_id.empty() || credentials.secret.empty())) {
    throw Error(ErrorKind::InvalidArgument, "a key for S3 is empty");
  }
}

}  // namespace

CommandLimits credential_command_limits{std::chrono::minutes(1), 64 << 10};

S3Credentials find_s3_credentials(const S3Options& s3, const HttpOptions& http, Cancel& cancel) {
  cancel.check();
  S3Credentials found = Finder(s3, http, cancel).find();
  check(found);
  return found;
}

}  // namespace tensorizer
