// The options for TLS, which http, s3 and redis take.
#pragma once

#include <string>
#include <vector>

#include "io/option.h"

namespace tensorizer {

struct TlsOptions {
  std::string ca_file;  // certificate authorities; empty for those of the system
  std::string ca_path;  // a folder of more authorities
  std::string client_cert;
  std::string client_key;
  bool insecure = false;  // accepts any certificate of a server
};

// Returns options that set the members of `tls`. They keep a reference to it.
std::vector<Option> tls_options(TlsOptions& tls);

}  // namespace tensorizer
