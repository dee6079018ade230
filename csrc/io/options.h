// What a caller may say about where bytes come from and go to.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tensorizer {

// How to speak with web servers. Headers are secrets.
struct HttpOptions {
  std::vector<std::pair<std::string, std::string>> headers;
  std::string ca_file;  // the system's own authorities when it is empty
  std::string client_cert;
  std::string client_key;
  bool insecure = false;  // takes any certificate
  // In seconds.
  double connect_timeout = 10;
  double stall_timeout = 30;
  double timeout = 0;  // for one read with all of its tries; 0 is none
  int connections = 16;
  std::uint64_t chunk_size = 8 << 20;  // what one request asks for
  int retries = 5;                     // that bring nothing
  std::uint64_t max_bandwidth = 0;     // in bytes per second; 0 is no limit
};

struct SourceOptions {
  HttpOptions http;
};

struct SinkOptions {
  HttpOptions http;
  // Wait until the bytes, and the name, are on stable storage.
  bool fsync = false;
  // Of an upload whose size nobody knows beforehand.
  std::uint64_t part_size = 16 << 20;
};

}  // namespace tensorizer
