#include "io/aws/metadata_service.h"

#include <arpa/inet.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/environment.h"
#include "base/error.h"
#include "base/text.h"
#include "base/timestamp.h"
#include "io/aws/config_file.h"
#include "io/http/fetch.h"
#include "io/http/open.h"
#include "io/secret.h"
#include "io/service_url.h"
#include "io/url.h"

namespace tensorizer {

namespace {

constexpr std::string_view kContainerHost = "http://169.254.170.2";
constexpr std::string_view kRoles = "/latest/meta-data/iam/security-credentials/";

std::string get(const JsonObject& object, std::string_view name) {
  const auto found = object.find(name);
  return found == object.end() ? std::string() : found->second;
}

// Returns options with short timeouts: services on the machine respond soon or do not exist.
HttpOptions local_options(const HttpOptions& http, double seconds, int retries) {
  HttpOptions options;
  options.tls.ca_file = http.tls.ca_file;
  options.tls.ca_path = http.tls.ca_path;
  options.tls.insecure = http.tls.insecure;
  options.connect_timeout = options.stall_timeout = seconds;
  options.retries = retries;
  return options;
}

bool is_loopback(const std::string& host) {
  in_addr address{};
  const bool is_address = inet_pton(AF_INET, host.c_str(), &address) == 1;
  return host == "localhost" || host == "[::1]" ||
         (is_address && ntohl(address.s_addr) >> 24 == 127);
}

// Returns true for the addresses of AWS's own agents.
bool is_agent(const std::string& host) {
  return host == "169.254.170.2" || host == "169.254.170.23" || host == "[fd00:ec2::23]";
}

std::string container_url() {
  const std::string path = environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  const std::string url = path.empty() ? environment("AWS_CONTAINER_CREDENTIALS_FULL_URI")
                                       : std::string(kContainerHost) + path;
  const std::optional<UrlParts> parts = url_parts(url);
  if (parts && url.find('@') == std::string::npos &&
      (parts->scheme == "https" || is_loopback(parts->host) || is_agent(parts->host))) {
    return url;
  }
  throw Error(ErrorKind::InvalidArgument,
              "the container's credentials are at " + quote(without_secrets(url)) +
                  ", and must be at an https:// URL, on this machine, or at an address of AWS's "
                  "agents");
}

// Returns the token with which the container authorizes itself; or empty.
std::string container_token() {
  const std::string path = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  const std::string token = path.empty() ? environment("AWS_CONTAINER_AUTHORIZATION_TOKEN")
                                         : resolve_secret("file:" + path);
  if (is_header_value(token)) return token;
  throw Error(ErrorKind::InvalidArgument,
              "the container's authorization token must be one line of printable text");
}

S3Credentials parse_reply(const HttpReply& reply, const HttpQuestion& question) {
  const std::string& label = question.label;
  const std::optional<JsonObject> object = parse_json_object(reply.body);
  if (reply.status == 200 && object) return credentials_in(*object, label, reply.short_secrets);
  throw Error(
      ErrorKind::PermissionDenied,
      label + " answers with status " + std::to_string(reply.status) + " and no credentials");
}

std::string metadata_address() {
  const std::string given = environment("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (!given.empty()) return full_service_url(given, "AWS_EC2_METADATA_SERVICE_ENDPOINT");
  const std::string mode = lower_case(environment("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"));
  return mode == "ipv6" ? "http://[fd00:ec2::254]" : "http://169.254.169.254";
}

// Version 2 of the service, in which every request carries a token.
class MetadataService {
 public:
  explicit MetadataService(Cancel& cancel) : address_(metadata_address()), cancel_(cancel) {
    HttpQuestion question = about("/latest/api/token");
    question.request.method = "PUT";
    question.request.headers = {"X-aws-ec2-metadata-token-ttl-seconds: 21600"};
    token_ = ask(question).body;
    if (token_.empty() || !is_header_value(token_)) {
      throw Error(ErrorKind::Unavailable, question.label + " answers with a malformed token");
    }
  }

  HttpQuestion about(const std::string& path) const {
    HttpQuestion question;
    question.request.url = address_ + path;
    question.request.direct = true;
    if (!token_.empty()) {
      question.request.headers = {"X-aws-ec2-metadata-token: " + token_};
      question.request.secrets = {token_};
    }
    question.label = "the machine's metadata at " + quote(question.request.url);
    return question;
  }

  HttpReply ask(const HttpQuestion& question) const {
    HttpReply reply = http_fetch(question, local_options({}, 1, 1), cancel_);
    if (reply.status == 200) return reply;
    throw Error(ErrorKind::PermissionDenied,
                question.label + " answers with status " + std::to_string(reply.status));
  }

 private:
  const std::string address_;
  Cancel& cancel_;
  std::string token_;
};

// Returns the name of the role. Throws if it could not be part of a URL.
std::string role_in(const std::string& list, const std::string& label) {
  const std::string role(trimmed(std::string_view(list).substr(0, list.find('\n'))));
  const bool is_name = std::all_of(role.begin(), role.end(), [](char c) {
    return is_letter(c) || is_digit(c) ||
           std::string_view("+=,.@_-").find(c) != std::string_view::npos;
  });
  if (!role.empty() && is_name) return role;
  throw Error(ErrorKind::PermissionDenied, label + " names no role");
}

}  // namespace

S3Credentials container_credentials(const HttpOptions& http, Cancel& cancel) {
  HttpQuestion question;
  question.request.url = container_url();
  question.request.direct = true;
  question.request.headers = {"Accept: application/json"};
  if (const std::string token = container_token(); !token.empty()) {
    question.request.headers.push_back("Authorization: " + token);
    add_header_secrets(question.request.secrets, question.request.headers.back());
  }
  question.label = "the container's credentials at " + quote(without_secrets(question.request.url));
  add_url_secrets(question.request.secrets, question.request.url);
  return parse_reply(http_fetch(question, local_options(http, 2, 3), cancel), question);
}

S3Credentials machine_credentials(Cancel& cancel) {
  if (lower_case(environment("AWS_EC2_METADATA_DISABLED")) == "true") {
    throw Error(ErrorKind::PermissionDenied,
                "AWS_EC2_METADATA_DISABLED forbids requests for the machine's metadata");
  }
  const MetadataService metadata(cancel);
  const std::string roles(kRoles);
  const HttpQuestion list = metadata.about(roles);
  const HttpQuestion role = metadata.about(roles + role_in(metadata.ask(list).body, list.label));
  return parse_reply(metadata.ask(role), role);
}

S3Credentials credentials_in(const JsonObject& object, const std::string& label,
                             const Secrets& secrets) {
  const std::string code = get(object, "Code");
  if (!code.empty() && code != "Success") {
    throw Error(ErrorKind::PermissionDenied,
                label + " answers with code " + quote(redacted(code, secrets), 64));
  }
  S3Credentials credentials;
  credentials.key_id = get(object, "AccessKeyId");
  credentials.secret = get(object, "SecretAccessKey");
  const std::string token = get(object, "Token");
  credentials.session_token = token.empty() ? get(object, "SessionToken") : token;
  if (credentials.key_id.empty() || credentials.secret.empty()) {
    throw Error(ErrorKind::InvalidFormat, label + " gives no AccessKeyId or no SecretAccessKey");
  }
  const std::string expiration = get(object, "Expiration");
  credentials.expires = parse_timestamp(expiration);
  if (!expiration.empty() && !credentials.expires) {
    throw Error(ErrorKind::InvalidFormat, label + " gives an Expiration that is not a timestamp");
  }
  return credentials;
}

}  // namespace tensorizer
