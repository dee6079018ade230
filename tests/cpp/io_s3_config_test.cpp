// Settings of S3 in options, the environment and files, and which of them takes precedence.
#include "io/aws/config.h"

#include "aws_home.h"

namespace tensorizer {
namespace {

using namespace testing_support;

class S3ConfigTest : public AwsHome {
 protected:
  S3Config read() { return {options_, cancel_}; }
  S3Settings settings() { return read().settings(); }
  S3Origin origin() { return read().origin(); }

  S3Options options_;
};

TEST_F(S3ConfigTest, KnowsNothingWhereThereIsNothing) {
  EXPECT_EQ(origin(), S3Origin::Metadata);
  EXPECT_EQ(settings().endpoint, "");
  EXPECT_EQ(settings().region, "");
  EXPECT_EQ(settings().addressing, "");
  EXPECT_FALSE(settings().force_http);
}

TEST_F(S3ConfigTest, AsksForTheEndpointInOrder) {
  config(
      "[default]\nendpoint_url = http://profile\nservices = mine\n"
      "[services mine]\nsts =\n  endpoint_url = http://sts\ns3 =\n  endpoint_url = "
      "http://service\n");
  s3cfg("[default]\naccess_key = k\nsecret_key = s\nhost_base = home\nuse_https = False\n");
  options_.endpoint = "option";
  set("AWS_ENDPOINT_URL_S3", "http://s3");
  set("AWS_ENDPOINT_URL", "http://all");
  EXPECT_EQ(settings().endpoint, "https://option");
  EXPECT_FALSE(settings().force_http) << "that is what the file says about its own host";
  options_.endpoint = "";
  EXPECT_EQ(settings().endpoint, "http://s3");
  set("AWS_ENDPOINT_URL_S3", "");
  EXPECT_EQ(settings().endpoint, "http://all");
  set("AWS_ENDPOINT_URL", std::nullopt);
  EXPECT_EQ(settings().endpoint, "http://service");
  EXPECT_EQ(read().aws.endpoint("STS"), "http://sts");
  config("[default]\nendpoint_url = http://profile\n");
  EXPECT_EQ(settings().endpoint, "http://profile");
  config("");
  EXPECT_EQ(settings().endpoint, "http://home");
  EXPECT_TRUE(settings().force_http);
  set("AWS_ACCESS_KEY_ID", "k");
  set("AWS_SECRET_ACCESS_KEY", "s");
  EXPECT_EQ(settings().endpoint, "") << "these keys are not for that host";
  EXPECT_FALSE(settings().force_http);
  set("AWS_ACCESS_KEY_ID", std::nullopt);
  set("AWS_SECRET_ACCESS_KEY", std::nullopt);
  s3cfg("[default]\nhost_base = home\n");
  EXPECT_EQ(settings().endpoint, "") << "a file without keys";
}

TEST_F(S3ConfigTest, IgnoresEndpointsOnDemand) {
  config("[default]\nendpoint_url = http://profile\nignore_configured_endpoint_urls = true\n");
  set("AWS_ENDPOINT_URL", "http://all");
  options_.endpoint = "option";
  EXPECT_EQ(settings().endpoint, "https://option");
  options_.endpoint = "";
  EXPECT_EQ(settings().endpoint, "");
  set("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "false");
  EXPECT_EQ(settings().endpoint, "http://all");
  config("");
  set("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "True");
  EXPECT_EQ(settings().endpoint, "");
}

TEST_F(S3ConfigTest, AsksForTheRegionInOrder) {
  config("[default]\nregion = of-profile\ns3 =\n  addressing_style = path\n");
  s3cfg("[default]\naccess_key = k\nsecret_key = s\nbucket_location = EU\n");
  options_.region = "of-option";
  set("AWS_REGION", "of-variable");
  set("AWS_DEFAULT_REGION", "of-other");
  EXPECT_EQ(settings().region, "of-option");
  options_.region = "";
  EXPECT_EQ(settings().region, "of-variable");
  set("AWS_REGION", std::nullopt);
  EXPECT_EQ(settings().region, "of-other");
  set("AWS_DEFAULT_REGION", std::nullopt);
  EXPECT_EQ(settings().region, "of-profile");
  EXPECT_EQ(settings().addressing, "path");
  options_.addressing = "virtual";
  EXPECT_EQ(settings().addressing, "virtual");
  config("");
  EXPECT_EQ(settings().region, "eu-west-1");
  options_.region = "a\r\nb: c";
  EXPECT_EQ(kind_of([&] { settings(); }), ErrorKind::InvalidArgument);
}

TEST_F(S3ConfigTest, TakesTheFileThatIsNamedBeforeTheEnvironment) {
  const std::string path = folder_ / "other.cfg";
  write_file(path,
             "[default]\naccess_key = k\nsecret_key = \"s=%(x)s\"\naccess_token = t\n"
             "host_base = HOST:81/a/\nuse_https = False\nbucket_location = US\n");
  s3cfg("[default]\naccess_key = no\nsecret_key = no\nhost_base = no\n");
  set("AWS_ACCESS_KEY_ID", "k");
  set("AWS_SECRET_ACCESS_KEY", "s");
  set("AWS_ENDPOINT_URL", "http://all");
  set("AWS_REGION", "of-variable");
  options_.config_path = "~/other.cfg";
  const S3Config read_config = read();
  EXPECT_EQ(read_config.origin(), S3Origin::S3cmd);
  EXPECT_EQ(read_config.s3cmd.access_key, "k");
  EXPECT_EQ(read_config.s3cmd.secret_key, "s=%(x)s");
  EXPECT_EQ(read_config.s3cmd.access_token, "t");
  EXPECT_EQ(settings().endpoint, "http://host:81/a");
  EXPECT_TRUE(settings().force_http);
  EXPECT_EQ(settings().region, "us-east-1");
  write_file(path, "[default]\nhost_base = s3.amazonaws.com\n");
  EXPECT_EQ(origin(), S3Origin::Environment) << "it has no keys, and ~/.s3cfg is not it";
  EXPECT_EQ(settings().endpoint, "http://all");
  set("AWS_ENDPOINT_URL", std::nullopt);
  EXPECT_EQ(settings().endpoint, "") << "AWS itself";
  write_file(path, "[default]\naccess_key = k\n");
  EXPECT_EQ(kind_of([&] { read(); }), ErrorKind::InvalidArgument);
  options_.config_path = folder_ / "missing";
  EXPECT_EQ(kind_of([&] { read(); }), ErrorKind::NotFound);
}

TEST_F(S3ConfigTest, KnowsWhoseKeysComeFirst) {
  set("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://localhost/");
  EXPECT_EQ(origin(), S3Origin::Container);
  s3cfg("[default]\naccess_key = k\nsecret_key = s\n");
  EXPECT_EQ(origin(), S3Origin::S3cmd);
  credentials("[default]\naws_access_key_id = k\naws_secret_access_key = s\n[bare]\nx = y\n");
  EXPECT_EQ(origin(), S3Origin::Profile);
  set("AWS_WEB_IDENTITY_TOKEN_FILE", "/token");
  EXPECT_EQ(origin(), S3Origin::WebIdentity);
  config("[profile default]\nrole_arn = r\n");
  EXPECT_EQ(origin(), S3Origin::Profile) << "a role that the profile takes comes first";
  set("AWS_ACCESS_KEY_ID", "k");
  EXPECT_EQ(kind_of([&] { read(); }), ErrorKind::InvalidArgument) << "only half of a pair";
  set("AWS_SECRET_ACCESS_KEY", "s");
  EXPECT_EQ(origin(), S3Origin::Environment);
  set("AWS_PROFILE", "bare");
  EXPECT_EQ(origin(), S3Origin::Environment);
  options_.profile = "default";
  EXPECT_EQ(origin(), S3Origin::Profile);
  options_.profile = "bare";
  EXPECT_EQ(origin(), S3Origin::S3cmd) << "who names a profile does not mean the environment";
  options_.access_key_id = "k";
  EXPECT_EQ(kind_of([&] { read(); }), ErrorKind::InvalidArgument);
  options_.secret_access_key = "s";
  EXPECT_EQ(origin(), S3Origin::Options);
  options_.anonymous = true;
  EXPECT_EQ(origin(), S3Origin::Anonymous);
}

TEST_F(S3ConfigTest, FindsProfilesInBothFiles) {
  config("[default]\nregion = a\n[profile 'b c']\nregion = d\noutput = x\n[e]\nregion = f\n");
  credentials("[default]\nregion = g\n[b c]\naws_access_key_id = h\n[i]\nregion = j\n");
  EXPECT_EQ(settings().region, "g");
  set("AWS_PROFILE", "b c");
  EXPECT_EQ(settings().region, "d");
  EXPECT_EQ(read().aws.profile().get("aws_access_key_id"), "h");
  set("AWS_DEFAULT_PROFILE", "i");
  EXPECT_EQ(settings().region, "j") << "as botocore prefers it";
  set("AWS_DEFAULT_PROFILE", "");
  EXPECT_EQ(settings().region, "d");
  options_.profile = "i";
  EXPECT_EQ(settings().region, "j");
  options_.profile = "e";
  const Error missing = error_of([&] { read(); });
  EXPECT_EQ(missing.kind(), ErrorKind::InvalidArgument) << "a section [e] in config is no profile";
  EXPECT_TRUE(contains(missing.what(), "no profile 'e'")) << missing.what();
  options_.profile = "";
  set("AWS_PROFILE", std::nullopt);
  write_file(folder_ / "other", "[default]\nregion = other\n");
  set("AWS_SHARED_CREDENTIALS_FILE", folder_ / "other");
  set("AWS_CONFIG_FILE", "/dev/null");
  EXPECT_EQ(settings().region, "other");
}

TEST_F(S3ConfigTest, HasEndpointsInOneForm) {
  const auto endpoint = [&](const std::string& given, bool force_http = false) {
    options_.endpoint = given;
    options_.force_http = force_http;
    return settings().endpoint;
  };
  EXPECT_EQ(endpoint("host"), "https://host");
  EXPECT_EQ(endpoint("host:9000", true), "http://host:9000");
  EXPECT_EQ(endpoint("HTTP://Host.Name:80/a/B/"), "http://host.name/a/B");
  EXPECT_EQ(endpoint("https://host:443", true), "http://host");
  EXPECT_EQ(endpoint("https://[::1]:9000/"), "https://[::1]:9000");
  EXPECT_EQ(endpoint("[fd00::1]"), "https://[fd00::1]");
  for (const char* given : {"http://",
                            "ftp://host",
                            "http:///a",
                            "http://host:",
                            "http://host:0",
                            "http://host:65536",
                            "http://host:x",
                            "http://a b",
                            "http://a\nb",
                            "http://host/a?sesame",
                            "http://host/#",
                            "http://me:sesame@host",
                            "me:sesame@host",
                            "http://a\\b",
                            "http://[::1",
                            "http://[]",
                            "http://[x]",
                            "http://host%41",
                            "é",
                            "://",
                            "/"}) {
    const std::string text = message_of([&] { endpoint(given); });
    EXPECT_TRUE(contains(text, "InvalidArgument: option 's3_endpoint' is"))
        << given << ": " << text;
    EXPECT_FALSE(contains(text, "sesame")) << text;
  }
}

TEST_F(S3ConfigTest, NamesWhereAnEndpointWithoutASchemeIs) {
  const auto is_named = [&](const std::string& what) {
    const std::string text = message_of([&] { settings(); });
    return contains(text, what + " is 'host:9000', and must begin with http:// or https://");
  };
  config("[default]\nendpoint_url = host:9000\n");
  EXPECT_TRUE(is_named("endpoint_url of profile 'default'"));
  set("AWS_ENDPOINT_URL", "host:9000");
  EXPECT_TRUE(is_named("AWS_ENDPOINT_URL"));
  set("AWS_ENDPOINT_URL_S3", "host:9000");
  EXPECT_TRUE(is_named("AWS_ENDPOINT_URL_S3"));
  set("AWS_ENDPOINT_URL_S3", "me:sesame@host");
  EXPECT_FALSE(contains(message_of([&] { settings(); }), "sesame"));
  options_.endpoint = "other:9000";
  EXPECT_EQ(settings().endpoint, "https://other:9000");
}

TEST_F(S3ConfigTest, RefusesWhatIsNoFileOfSettings) {
  config("[default]\nservices = none\n");
  EXPECT_EQ(kind_of([&] { settings(); }), ErrorKind::InvalidArgument);
  config("[default]\nsesame\n");
  const Error error = error_of([&] { read(); });
  EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat);
  EXPECT_TRUE(contains(error.what(), "line 2 of '" + (folder_ / ".aws/config").string() + "'"))
      << error.what();
  config("[default]\nx = " + std::string(2 << 20, 'y'));
  EXPECT_EQ(kind_of([&] { read(); }), ErrorKind::InvalidFormat);
  set("AWS_CONFIG_FILE", "/dev/zero");
  EXPECT_EQ(kind_of([&] { read(); }), ErrorKind::InvalidFormat);
  set("AWS_CONFIG_FILE", folder_ / "fifo");
  ASSERT_EQ(mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  expect_cancelled_soon([&] { read(); });
}

}  // namespace
}  // namespace tensorizer
