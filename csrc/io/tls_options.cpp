#include "io/tls_options.h"

namespace tensorizer {

std::vector<Option> tls_options(TlsOptions& tls) {
  return {
      text_option("ca_file", "a path", tls.ca_file),
      text_option("ca_path", "a path", tls.ca_path),
      text_option("client_cert", "a path", tls.client_cert),
      text_option("client_key", "a path", tls.client_key),
      bool_option("insecure", tls.insecure),
  };
}

}  // namespace tensorizer
