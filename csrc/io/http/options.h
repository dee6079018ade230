// The options for web servers, which S3 takes as well.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/option.h"
#include "io/tls_options.h"

namespace tensorizer {

// How to speak with web servers. Headers are secrets.
struct HttpOptions {
  std::vector<std::pair<std::string, std::string>> headers;
  TlsOptions tls;
  bool http2 = true;  // where a server offers it
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

// Keeps a reference, as all that set the members of a struct.
std::vector<Option> http_options(HttpOptions& http);

// Whether a header of this value would end where it should.
bool is_header_value(std::string_view value);

}  // namespace tensorizer
