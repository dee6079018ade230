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

// The options of requests to web servers. The values of headers are secrets.
struct HttpOptions {
  std::vector<std::pair<std::string, std::string>> headers;
  TlsOptions tls;
  bool http2 = true;  // if the server offers it
  // In seconds.
  double connect_timeout = 10;
  double stall_timeout = 30;
  double timeout = 0;  // for one read with all of its retries; 0 is no limit
  int connections = 16;
  std::uint64_t chunk_size = 8 << 20;  // bytes of one range request
  int retries = 5;                     // in a row without progress
  std::uint64_t max_bandwidth = 0;     // in bytes per second; 0 is no limit
  bool header_everywhere = false;      // sends headers to other servers after a redirect as well
  bool insecure_redirects = false;     // allows redirects from https:// to http://
};

// Returns options that set the members of `http`. They keep a reference to it.
std::vector<Option> http_options(HttpOptions& http);

// Returns true for the name of a header with credentials, which is never sent to other servers.
bool is_for_its_server_only(std::string_view header);

// Returns the options without the headers that must not be sent to other servers.
OptionList for_other_servers(const OptionList& given);

// Returns true for a value without control characters, which could end the header early.
bool is_header_value(std::string_view value);

}  // namespace tensorizer
