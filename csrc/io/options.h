// What a caller may say about where bytes come from and go to.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace tensorizer {

// How to speak with web servers. Headers are secrets.
struct HttpOptions {
  bool operator==(const HttpOptions&) const = default;

  std::vector<std::pair<std::string, std::string>> headers;
  std::string ca_file;  // the system's own authorities when it is empty
  std::string ca_path;  // a folder of more of them
  std::string client_cert;
  std::string client_key;
  bool insecure = false;  // takes any certificate
  bool http2 = true;      // where a server offers it
  // In seconds.
  double connect_timeout = 10;
  double stall_timeout = 30;
  double timeout = 0;  // for one read with all of its tries; 0 is none
  int connections = 16;
  std::uint64_t chunk_size = 8 << 20;  // what one request asks for
  int retries = 5;                     // that bring nothing
  std::uint64_t max_bandwidth = 0;     // in bytes per second; 0 is no limit
  // Of redirects: whether headers go to other servers as well, and whether they may lead from
  // https:// to http://.
  bool header_everywhere = false;
  bool insecure_redirects = false;
};

// How to speak with S3, as the caller said it: what is empty was not given. What may be a secret
// may also name one instead (io/secret.h).
struct S3Options {
  bool operator==(const S3Options&) const = default;

  std::string access_key_id;
  std::string secret_access_key;
  std::string session_token;
  std::string endpoint;     // a URL, or a host
  std::string region;       // for example "eu-west-1"
  std::string profile;      // of the files in ~/.aws
  std::string config_path;  // a file as s3cmd has it
  bool force_http = false;
  bool anonymous = false;
  bool anonymous_without_keys = false;  // only where there are no keys anywhere
  bool requester_pays = false;
  std::string version_id;
  std::string sse_customer_key;  // a secret: 32 bytes in base64
  std::string addressing;        // "path", "virtual", or empty: what fits the endpoint
  bool signs_url = false;        // loads are signed in their URLs, by version 2
};

// How to speak with Redis servers. The user and the password are secrets, and come before those of
// the URI.
struct RedisOptions {
  bool operator==(const RedisOptions&) const = default;

  std::string user;
  std::string password;
  int database = 0;
  // In seconds.
  double connect_timeout = 10;
  double stall_timeout = 30;
  int connections = 4;
  // Of a load.
  int retries = 5;
  bool any_keys = false;  // whether the keys may be those of no file: any, and with gaps
  // Of a save.
  std::uint64_t ttl = 0;  // after so many seconds the keys are gone; 0 is never
  bool overwrite = true;
};

struct SourceOptions {
  bool operator==(const SourceOptions&) const = default;

  HttpOptions http{};
  S3Options s3{};
  RedisOptions redis{};
  // The part that will be read, as far as that is known: a first request asks for nothing else.
  std::uint64_t begin = 0;
  std::uint64_t end = std::numeric_limits<std::uint64_t>::max();
};

struct SinkOptions {
  HttpOptions http{};
  S3Options s3{};
  RedisOptions redis{};
  // Wait until the bytes, and the name, are on stable storage.
  bool fsync = false;
  // Of an upload whose size nobody knows beforehand.
  std::uint64_t part_size = 16 << 20;
};

}  // namespace tensorizer
