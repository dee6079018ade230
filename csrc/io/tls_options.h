// The options for TLS, which every place takes that speaks it.
#pragma once

#include <string>
#include <vector>

#include "io/option.h"

namespace tensorizer {

struct TlsOptions {
  std::string ca_file;  // the system's own authorities when it is empty
  std::string ca_path;  // a folder of more of them
  std::string client_cert;
  std::string client_key;
  bool insecure = false;  // takes any certificate
};

// Keeps a reference.
std::vector<Option> tls_options(TlsOptions& tls);

}  // namespace tensorizer
