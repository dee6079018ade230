#include "io/aws/sts.h"

#include <optional>

#include "base/error.h"
#include "base/timestamp.h"
#include "base/world.h"
#include "codec/hmac.h"
#include "io/aws/sign.h"
#include "io/http/fetch.h"
#include "io/xml.h"

namespace tensorizer {

namespace {

constexpr const char* kUsualRegion = "us-east-1";

struct Address {
  std::string url;
  std::string host;  // for the header "Host"
  std::string path;
};

std::string endpoint_of(const StsService& service) {
  if (!service.endpoint.empty()) return service.endpoint;
  if (service.region.empty()) return "https://sts.amazonaws.com";
  return "https://sts." + service.region + ".amazonaws.com" +
         (service.region.starts_with("cn-") ? ".cn" : "");
}

Address address_of(const StsService& service) {
  const std::string url = endpoint_of(service) + "/";
  const std::size_t host = url.find("://") + 3;
  const std::size_t path = url.find('/', host);
  return {url, url.substr(host, path - host), url.substr(path)};
}

// Returns the parameters that every kind of request needs.
NamedTexts form_of(const char* action, const AwsRole& role) {
  const std::string made_up = "tensorizer-ops-" + std::to_string(WallClock::seconds());
  NamedTexts form = {{"Action", action},
                     {"Version", "2011-06-15"},
                     {"RoleArn", role.arn},
                     {"RoleSessionName", role.session_name.empty() ? made_up : role.session_name}};
  if (!role.external_id.empty()) form.emplace_back("ExternalId", role.external_id);
  if (!role.duration.empty()) form.emplace_back("DurationSeconds", role.duration);
  return form;
}

// Returns true for a refusal that may succeed later.
bool is_temporary(const HttpReply& reply) {
  if (reply.status < 400) return false;
  const std::string code = xml_text(reply.body, "Code").value_or("");
  return code == "Throttling" || code == "ThrottlingException" || code == "IDPCommunicationError";
}

[[noreturn]] void throw_refused(const HttpQuestion& question, const HttpReply& reply,
                                const AwsRole& role) {
  // Only the code is shown: the server's message could repeat a secret in another form.
  const std::optional<std::string> code = xml_text(reply.body, "Code");
  throw Error(ErrorKind::PermissionDenied,
              question.label + " refuses the role " + quote(role.arn) + " with status " +
                  std::to_string(reply.status) +
                  (code ? " and code " + quote(redacted(*code, reply.short_secrets), 64) : ""));
}

S3Credentials ask(const HttpQuestion& question, const StsService& service, const AwsRole& role,
                  Cancel& cancel) {
  const HttpReply reply = http_fetch(question, service.http, cancel);
  if (reply.status != 200) throw_refused(question, reply, role);
  S3Credentials credentials;
  const auto take = [&](const char* element) { return xml_text(reply.body, element).value_or(""); };
  credentials.key_id = take("AccessKeyId");
  credentials.secret = take("SecretAccessKey");
  credentials.session_token = take("SessionToken");
  credentials.expires = parse_timestamp(take("Expiration"));
  if (credentials.key_id.empty() || credentials.secret.empty() || !credentials.expires) {
    throw Error(ErrorKind::Unavailable, question.label + " answers with no credentials");
  }
  return credentials;
}

HttpQuestion question_of(const Address& address, const NamedTexts& form) {
  HttpQuestion question;
  question.request.method = "POST";
  question.request.url = address.url;
  question.request.headers = {"Host: " + address.host,
                              "Content-Type: application/x-www-form-urlencoded"};
  question.body = escape_query(form);
  question.label = "the security token service at " + quote(address.url);
  question.is_temporary = &is_temporary;
  return question;
}

void sign(HttpQuestion& question, const Address& address, const StsService& service,
          const S3Credentials& by) {
  const SigningScope scope{service.region.empty() ? kUsualRegion : service.region, "sts",
                           WallClock::seconds()};
  SignedRequest request;
  request.method = question.request.method;
  request.path = address.path;
  request.headers = {{"host", address.host}, {"x-amz-date", signing_time(scope.time)}};
  if (!by.session_token.empty()) {
    request.headers.emplace_back("x-amz-security-token", by.session_token);
  }
  request.payload_hash = to_hex(sha256(as_bytes(question.body)));
  const std::string signature = authorization(request, scope, by.key_id, by.secret);
  for (const auto& [name, value] : request.headers) {
    if (name != "host") question.request.headers.push_back(name + ": " + value);
  }
  question.request.headers.push_back("Authorization: " + signature);
  question.request.secrets = {by.key_id, by.secret, by.session_token,
                              signature.substr(signature.rfind('=') + 1)};
}

}  // namespace

S3Credentials assume_role(const StsService& service, const AwsRole& role, const S3Credentials& by,
                          Cancel& cancel) {
  const Address address = address_of(service);
  HttpQuestion question = question_of(address, form_of("AssumeRole", role));
  sign(question, address, service, by);
  return ask(question, service, role, cancel);
}

S3Credentials assume_role_with_token(const StsService& service, const AwsRole& role,
                                     const std::string& token, Cancel& cancel) {
  NamedTexts form = form_of("AssumeRoleWithWebIdentity", role);
  form.emplace_back("WebIdentityToken", token);
  HttpQuestion question = question_of(address_of(service), form);
  question.request.secrets = {token};
  return ask(question, service, role, cancel);
}

}  // namespace tensorizer
