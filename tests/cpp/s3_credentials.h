// A chain of S3 credentials in a home directory, to which a test adds places that give some.
#pragma once

#include <string>

#include "aws_home.h"
#include "base/timestamp.h"
#include "io/aws/credentials.h"

namespace tensorizer::testing_support {

inline const std::string kExpiration = "2026-01-31T12:00:00Z";

class S3CredentialsTest : public AwsHome {
 protected:
  S3CredentialsTest() {
    http_.retries = 2;
    http_.headers = {{"X-Private", "sesame"}};
  }

  S3Credentials get() { return S3CredentialsChain(options_, http_).get(cancel_); }

  // Returns the command of a script that prints credentials of version 1 with this expiration. The
  // script counts its calls, and the count is part of the key's ID.
  std::string process(const std::string& expiration) {
    const std::string script = folder_ / "give me";
    const std::string ending = expiration.empty() ? "" : ",\"Expiration\":\"" + expiration + "\"";
    write_file(script, "echo x >> " + calls() + "\nn=$(wc -l < " + calls() +
                           ")\nprintf '{\"Version\":1,\"AccessKeyId\":\"K%s\",\"SecretAccessKey\":"
                           "\"s\",\"SessionToken\":\"t\"%s}' \"$n\" '" +
                           ending + "'\n");
    return "sh '" + script + "'";
  }
  std::string calls() const { return folder_ / "calls"; }

  static void expect_keys(const S3Credentials& found, const std::string& id) {
    EXPECT_EQ(found.key_id, id);
    EXPECT_EQ(found.secret, "a/b+c=");
    EXPECT_EQ(found.session_token, "the token");
    EXPECT_EQ(found.expires, parse_timestamp(kExpiration));
    EXPECT_FALSE(found.anonymous);
  }

  S3Options options_;
  HttpOptions http_;
};

}  // namespace tensorizer::testing_support
