// S3 credentials: where they come from, and how they are fetched.
#include <atomic>

#include "s3_credentials.h"
#include "tiny_server.h"

namespace tensorizer {
namespace {

using namespace testing_support;

std::string json(const std::string& id, const std::string& expiration = kExpiration,
                 const std::string& token_name = "Token") {
  return R"({"Code":"Success","Version":1,"AccessKeyId":")" + id +
         R"(","SecretAccessKey":"a/b+c=",")" + token_name + R"(":"the token","Expiration":")" +
         expiration + "\"}";
}

std::string xml(const std::string& id) {
  return "<AssumeRoleResponse xmlns=\"https://sts\"><AssumeRoleResult><Credentials><AccessKeyId>" +
         id + "</AccessKeyId><SecretAccessKey>a/b+c=</SecretAccessKey>" +
         "<SessionToken>the token</SessionToken><Expiration>" + kExpiration +
         "</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>";
}

TEST_F(S3CredentialsTest, SayWhereTheyWereLookedFor) {
  const Error error = error_of([&] { get(); });
  EXPECT_EQ(error.kind(), ErrorKind::PermissionDenied);
  for (const char* place :
       {"s3_access_key_id", "AWS_ACCESS_KEY_ID", "profile 'default'", "~/.s3cfg",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_EC2_METADATA_DISABLED", "s3_anonymous"}) {
    EXPECT_TRUE(contains(error.what(), place)) << place << ": " << error.what();
  }
  options_.anonymous = true;
  EXPECT_TRUE(get().anonymous);
}

TEST_F(S3CredentialsTest, ComeFromOptionsThatMayNameThem) {
  set("A_TEST_S_SECRET", "from environment");
  write_file(folder_ / "token", "from file\nand more");
  options_.access_key_id = "AK";
  options_.secret_access_key = "env:A_TEST_S_SECRET";
  options_.session_token = "file:" + (folder_ / "token").string();
  const S3Credentials found = get();
  EXPECT_EQ(found.key_id, "AK");
  EXPECT_EQ(found.secret, "from environment");
  EXPECT_EQ(found.session_token, "from file");
  EXPECT_FALSE(found.expires);
  for (const char* bad : {"a\nb", "", "a\x01"}) {
    set("A_TEST_S_SECRET", std::string("sesame") + bad);
    if (*bad == '\0') set("A_TEST_S_SECRET", "");
    const Error error = error_of([&] { get(); });
    EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
    EXPECT_FALSE(contains(error.what(), "sesame"));
  }
}

TEST_F(S3CredentialsTest, ComeFromTheEnvironment) {
  set("AWS_ACCESS_KEY_ID", "AK");
  set("AWS_SECRET_ACCESS_KEY", "s");
  set("AWS_SESSION_TOKEN", "t");
  set("AWS_CREDENTIAL_EXPIRATION", kExpiration);
  const S3Credentials found = get();
  EXPECT_EQ(found.key_id + found.secret + found.session_token, "AKst");
  EXPECT_EQ(found.expires, parse_timestamp(kExpiration));
  set("AWS_SECURITY_TOKEN", "old");
  EXPECT_EQ(get().session_token, "old") << "as botocore prefers it";
}

TEST_F(S3CredentialsTest, ComeFromProfilesInTheOrderOfAwsTools) {
  const std::string keys = "aws_access_key_id = AK\naws_secret_access_key = s\n";
  config("[default]\naws_session_token = t\n" + keys);
  EXPECT_EQ(get().key_id + get().session_token, "AKt");
  config("[default]\naws_session_token = t\naws_security_token = old\n" + keys);
  EXPECT_EQ(get().session_token, "old");
  config("[default]\ncredential_process = " + process("") + "\n" + keys);
  EXPECT_EQ(get().key_id, "K1");
  credentials("[default]\naws_access_key_id = CK\naws_secret_access_key = s\n");
  EXPECT_EQ(get().key_id, "CK");
  credentials("[default]\naws_access_key_id = CK\n");
  EXPECT_EQ(kind_of([&] { get(); }), ErrorKind::InvalidArgument);
  credentials("");
  config("[default]\nsso_session = me\n");
  const Error error = error_of([&] { get(); });
  EXPECT_EQ(error.kind(), ErrorKind::PermissionDenied);
  EXPECT_TRUE(contains(error.what(), "aws configure export-credentials")) << error.what();
}

TEST_F(S3CredentialsTest, ComeFromProgramsThatPrintThem) {
  config("[default]\ncredential_process = " + process(kExpiration) + "\n");
  const S3Credentials found = get();
  EXPECT_EQ(found.key_id + found.secret + found.session_token, "K1st");
  EXPECT_EQ(found.expires, parse_timestamp(kExpiration));
  config(
      "[default]\ncredential_process = echo '{\"Version\":1,\"AccessKeyId\":\"K\",\"Extra\":"
      "{\"AccessKeyId\":[{}]},\"SecretAccessKey\":\"s\"}'\n");
  EXPECT_EQ(get().key_id, "K") << "what is nested is for others";
  for (const auto& [line, kind] : std::vector<std::pair<std::string, ErrorKind>>{
           {"sh -c 'echo sesame >&2; exit 3'", ErrorKind::PermissionDenied},
           {"echo sesame", ErrorKind::InvalidFormat},
           {"echo '{\"AccessKeyId\":\"sesame\",\"SecretAccessKey\":\"x\"}'",
            ErrorKind::InvalidFormat},
           {"echo '{\"Version\":2,\"AccessKeyId\":\"sesame\",\"SecretAccessKey\":\"x\"}'",
            ErrorKind::InvalidFormat},
           {"echo '{\"Version\":1,\"AccessKeyId\":\"sesame\"}'", ErrorKind::InvalidFormat},
           {"echo '{\"Version\":1,\"AccessKeyId\":\"sesame\",\"SecretAccessKey\":\"x\","
            "\"Expiration\":\"soon\"}'",
            ErrorKind::InvalidFormat},
           {"echo 'sesame", ErrorKind::InvalidArgument},
           {"/no/such/program", ErrorKind::InvalidArgument}}) {
    config("[default]\ncredential_process = " + line + "\n");
    const Error error = error_of([&] { get(); });
    EXPECT_EQ(error.kind(), kind) << line << ": " << error.what();
    EXPECT_FALSE(contains(error.what(), "sesame")) << error.what();
    EXPECT_TRUE(contains(error.what(), "profile 'default'")) << error.what();
  }
  config("[default]\ncredential_process = sleep 100\n");
  expect_cancelled_soon([&] { get(); });
}

TEST_F(S3CredentialsTest, ComeFromWebIdentities) {
  TinyServer sts([](const TinyRequest&) { return TinyAnswer{200, xml("WK"), ""}; });
  write_file(folder_ / "jwt", "a.b-c/d\n");
  set("AWS_WEB_IDENTITY_TOKEN_FILE", folder_ / "jwt");
  EXPECT_EQ(kind_of([&] { get(); }), ErrorKind::InvalidArgument) << "without a role";
  set("AWS_ROLE_ARN", "arn:aws:iam::1:role/r");
  set("AWS_ROLE_SESSION_NAME", "a session");
  set("AWS_ENDPOINT_URL_STS", sts.url("/sts/"));
  expect_keys(get(), "WK");
  const TinyRequest request = sts.requests().at(0);
  EXPECT_EQ(request.method + request.path, "POST/sts/");
  EXPECT_EQ(request.body,
            "Action=AssumeRoleWithWebIdentity&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr&"
            "RoleSessionName=a%20session&Version=2011-06-15&WebIdentityToken=a.b-c%2Fd");
  EXPECT_EQ(request.headers.count("x-private"), 0U) << "that header is for others";
  EXPECT_EQ(request.headers.count("authorization"), 0U);

  set("AWS_WEB_IDENTITY_TOKEN_FILE", std::nullopt);
  config("[default]\nweb_identity_token_file = " + (folder_ / "jwt").string() +
         "\nrole_arn = arn:r\n");
  expect_keys(get(), "WK");
  EXPECT_TRUE(contains(sts.requests().at(1).body, "RoleArn=arn%3Ar&"));
  EXPECT_TRUE(contains(sts.requests().at(1).body, "RoleSessionName=tensorizer-ops-"));
}

TEST_F(S3CredentialsTest, ComeFromRoles) {
  TinyServer sts([](const TinyRequest& request) {
    const bool first = contains(request.body, "RoleArn=arn%3Afirst");
    return TinyAnswer{200, xml(first ? "FIRST" : "SECOND"), ""};
  });
  set("AWS_ENDPOINT_URL_STS", sts.url());
  set("AWS_REGION", "eu-west-1");
  config(
      "[default]\nrole_arn = arn:second\nsource_profile = first\nexternal_id = e&f\n"
      "duration_seconds = 900\nrole_session_name = me\n"
      "[profile first]\nrole_arn = arn:first\nsource_profile = keys\n"
      "[profile keys]\naws_access_key_id = AK\naws_secret_access_key = s\n");
  expect_keys(get(), "SECOND");
  const std::vector<TinyRequest> requests = sts.requests();
  ASSERT_EQ(requests.size(), 2U);
  EXPECT_TRUE(
      requests[0].headers.at("authorization").starts_with("AWS4-HMAC-SHA256 Credential=AK/"));
  EXPECT_TRUE(contains(requests[0].headers.at("authorization"), "/eu-west-1/sts/aws4_request"));
  EXPECT_EQ(requests[0].headers.count("x-amz-security-token"), 0U);
  EXPECT_TRUE(contains(requests[1].headers.at("authorization"), "Credential=FIRST/"));
  EXPECT_TRUE(contains(requests[1].headers.at("authorization"), "x-amz-security-token"));
  EXPECT_EQ(requests[1].headers.at("x-amz-security-token"), "the token");
  EXPECT_EQ(requests[1].body,
            "Action=AssumeRole&DurationSeconds=900&ExternalId=e%26f&RoleArn=arn%3Asecond&"
            "RoleSessionName=me&Version=2011-06-15");

  config(
      "[default]\nrole_arn = arn:own\nsource_profile = default\naws_access_key_id = OWN\n"
      "aws_secret_access_key = s\n");
  expect_keys(get(), "SECOND");
  EXPECT_TRUE(contains(sts.requests().at(2).headers.at("authorization"), "Credential=OWN/"));
  set("AWS_ACCESS_KEY_ID", "ENV");
  set("AWS_SECRET_ACCESS_KEY", "s");
  config("[profile p]\nrole_arn = arn:env\ncredential_source = Environment\n");
  options_.profile = "p";
  expect_keys(get(), "SECOND");
  EXPECT_TRUE(contains(sts.requests().at(3).headers.at("authorization"), "Credential=ENV/"));
}

TEST_F(S3CredentialsTest, DoNotComeFromRolesThatCannotBeTaken) {
  for (const std::string settings :
       {"", "source_profile = none\n", "source_profile = default\n", "source_profile = round\n",
        "source_profile = bare\n", "credential_source = Other\n",
        "credential_source = Environment\nsource_profile = bare\n",
        "source_profile = keys\nmfa_serial = x\n"}) {
    config("[default]\nrole_arn = r\n" + settings +
           "[profile round]\nrole_arn = r\nsource_profile = default\n[profile bare]\nregion = x\n"
           "[profile keys]\naws_access_key_id = AK\naws_secret_access_key = s\n");
    const Error error = error_of([&] { get(); });
    EXPECT_TRUE(contains(error.what(), "profile '")) << settings << error.what();
    EXPECT_EQ(error.kind(), settings == "source_profile = bare\n" ? ErrorKind::PermissionDenied
                                                                  : ErrorKind::InvalidArgument)
        << settings << error.what();
  }
}

TEST_F(S3CredentialsTest, AreRefusedWithTheCodeAndNothingElse) {
  std::atomic<int> status{403};
  std::string body =
      "<ErrorResponse><Error><Code>AccessDenied</Code><Message>sesame</Message>"
      "</Error></ErrorResponse>";
  TinyServer sts([&](const TinyRequest&) { return TinyAnswer{status, body, ""}; });
  write_file(folder_ / "jwt", "sesame");
  set("AWS_WEB_IDENTITY_TOKEN_FILE", folder_ / "jwt");
  set("AWS_ROLE_ARN", "arn:r");
  set("AWS_ENDPOINT_URL", sts.url());
  Error error = error_of([&] { get(); });
  EXPECT_EQ(error.kind(), ErrorKind::PermissionDenied);
  EXPECT_TRUE(contains(error.what(), "'arn:r' with status 403 and code 'AccessDenied'"))
      << error.what();
  EXPECT_FALSE(contains(error.what(), "sesame"));
  EXPECT_EQ(sts.requests().size(), 1U);
  body = "<Error><Code>no SESAME</Code></Error>";
  error = error_of([&] { get(); });
  EXPECT_TRUE(contains(error.what(), "code 'no ...'")) << error.what();
  set("http_proxy", "http://me:pass%2Fword@" + sts.url().substr(7));
  set("no_proxy", std::nullopt);
  set("AWS_ENDPOINT_URL", "http://sts.invalid");
  body = "<Error><Code>no pass/word</Code></Error>";
  error = error_of([&] { get(); });
  EXPECT_TRUE(contains(error.what(), "code 'no ...'")) << error.what();
  set("http_proxy", std::nullopt);
  set("AWS_ENDPOINT_URL", sts.url());
  status = 400;
  body = "<Error><Code>Throttling</Code></Error>";
  EXPECT_EQ(kind_of([&] { get(); }), ErrorKind::Unavailable);
  EXPECT_EQ(sts.requests().size(), 6U) << "one that may be answered otherwise later";
  status = 503;
  EXPECT_EQ(kind_of([&] { get(); }), ErrorKind::Unavailable);
  EXPECT_EQ(sts.requests().size(), 9U);
  status = 200;
  for (const std::string& answer :
       {std::string("<html>"), std::string(), xml("").substr(0, 100), std::string(1 << 20, 'x')}) {
    body = answer;
    EXPECT_EQ(kind_of([&] { get(); }), ErrorKind::Unavailable);
  }
}

TEST_F(S3CredentialsTest, AreNotSentWhereARedirectLeads) {
  TinyServer other([](const TinyRequest&) { return TinyAnswer{200, xml("K"), ""}; });
  TinyServer sts(
      [&](const TinyRequest&) { return TinyAnswer{307, "", "Location: " + other.url() + "\r\n"}; });
  write_file(folder_ / "jwt", "sesame");
  set("AWS_WEB_IDENTITY_TOKEN_FILE", folder_ / "jwt");
  set("AWS_ROLE_ARN", "arn:r");
  set("AWS_ENDPOINT_URL_STS", sts.url());
  EXPECT_EQ(kind_of([&] { get(); }), ErrorKind::PermissionDenied);
  EXPECT_TRUE(other.requests().empty());
}

TEST_F(S3CredentialsTest, ComeFromContainers) {
  TinyServer agent([](const TinyRequest&) { return TinyAnswer{200, json("CK"), ""}; });
  // A proxy would return the credentials of its own machine.
  set("http_proxy", "http://127.0.0.1:1");
  set("no_proxy", std::nullopt);
  set("AWS_CONTAINER_CREDENTIALS_FULL_URI", agent.url("/v1?x=y"));
  expect_keys(get(), "CK");
  EXPECT_EQ(agent.requests().at(0).path, "/v1?x=y");
  EXPECT_EQ(agent.requests().at(0).headers.count("authorization"), 0U);
  set("AWS_CONTAINER_AUTHORIZATION_TOKEN", "from variable");
  get();
  EXPECT_EQ(agent.requests().at(1).headers.at("authorization"), "from variable");
  write_file(folder_ / "token", "from file\n");
  set("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", folder_ / "token");
  get();
  EXPECT_EQ(agent.requests().at(2).headers.at("authorization"), "from file");
  for (const char* elsewhere :
       {"http://example.com/", "http://127.0.0.1.example.com/", "http://169.254.169.254/",
        "http://127.0.0.1@example.com/", "http://127.0.0.1\\@example.com/", "http://[::2]/",
        "http://", "/relative", "ftp://127.0.0.1/", "http://127.0.0.1:1\r\n.example.com/"}) {
    set("AWS_CONTAINER_CREDENTIALS_FULL_URI", elsewhere);
    EXPECT_EQ(kind_of([&] { get(); }), ErrorKind::InvalidArgument) << elsewhere;
  }
  for (const char* relative : {".example.com/", "@example.com/", "x"}) {
    set("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", relative);
    EXPECT_EQ(kind_of([&] { get(); }), ErrorKind::InvalidArgument) << relative;
  }
}

// A machine's metadata service, in version 2.
class MachineTest : public S3CredentialsTest {
 protected:
  MachineTest() {
    set("AWS_EC2_METADATA_DISABLED", std::nullopt);
    set("AWS_EC2_METADATA_SERVICE_ENDPOINT", server_.url() + "/");
    set("http_proxy", "http://127.0.0.1:1");
    set("no_proxy", std::nullopt);
  }

  std::optional<TinyAnswer> answer(const TinyRequest& request) {
    const std::string roles = "/latest/meta-data/iam/security-credentials/";
    if (silent_) return std::nullopt;
    if (request.path == "/latest/api/token") {
      const bool right = request.method == "PUT" &&
                         request.headers.count("x-aws-ec2-metadata-token-ttl-seconds") == 1;
      return TinyAnswer{right ? token_status_.load() : 400, "a token", ""};
    }
    if (request.headers.count("x-aws-ec2-metadata-token") == 0 ||
        request.headers.at("x-aws-ec2-metadata-token") != "a token") {
      return TinyAnswer{401, "", ""};
    }
    if (request.path == roles) return TinyAnswer{200, role_, ""};
    if (request.path == roles + "a-role") return TinyAnswer{200, credentials_, ""};
    return TinyAnswer{404, "", ""};
  }

  std::atomic<bool> silent_{false};
  std::atomic<int> token_status_{200};
  std::string role_ = "a-role\n";
  std::string credentials_ = json("MK");
  TinyServer server_{[this](const TinyRequest& request) { return answer(request); }};
};

TEST_F(MachineTest, TellsTheCredentialsOfItsRole) { expect_keys(get(), "MK"); }

TEST_F(MachineTest, IsTheSourceOfARole) {
  TinyServer sts([](const TinyRequest&) { return TinyAnswer{200, xml("RK"), ""}; });
  set("no_proxy", "127.0.0.1");
  set("AWS_ENDPOINT_URL_STS", sts.url());
  config("[default]\nrole_arn = r\ncredential_source = Ec2InstanceMetadata\n");
  expect_keys(get(), "RK");
  EXPECT_TRUE(contains(sts.requests().at(0).headers.at("authorization"), "Credential=MK/"));
}

TEST_F(MachineTest, HasNothingToSay) {
  const auto refusal = [&] {
    const Error error = error_of([&] { get(); });
    EXPECT_EQ(error.kind(), ErrorKind::PermissionDenied);
    EXPECT_FALSE(contains(error.what(), "sesame"));
    return std::string(error.what());
  };
  token_status_ = 403;
  EXPECT_TRUE(contains(refusal(), "status 403"));
  token_status_ = 200;
  role_ = "../../sesame?";
  EXPECT_TRUE(contains(refusal(), "names no role"));
  role_ = "other";
  EXPECT_TRUE(contains(refusal(), "status 404"));
  role_ = "a-role";
  credentials_ = R"({"Code":"Failed","AccessKeyId":"sesame"})";
  EXPECT_TRUE(contains(refusal(), "code 'Failed'"));
  credentials_ = "sesame";
  EXPECT_TRUE(contains(refusal(), "no credentials"));
  silent_ = true;
  EXPECT_TRUE(contains(refusal(), "after 1 more try"));
  expect_cancelled_soon([&] { get(); });
}

}  // namespace
}  // namespace tensorizer
