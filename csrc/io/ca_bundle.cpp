#include "io/ca_bundle.h"

#include <curl/curl.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/environment.h"

namespace tensorizer {

namespace {

constexpr std::array<const char*, 5> kPlaces{
    "/etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Arch, Gentoo
    "/etc/pki/tls/certs/ca-bundle.crt",                   // Fedora, RHEL, Amazon Linux
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // newer ones of these
    "/etc/ssl/ca-bundle.pem",                             // openSUSE
    "/etc/ssl/cert.pem",                                  // Alpine
};

bool is_readable(const char* file) { return file != nullptr && ::access(file, R_OK) == 0; }

}  // namespace

std::string system_ca_bundle() {
  std::string given = environment({"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"});
  if (!given.empty()) return given;
  if (const char* const own = curl_version_info(CURLVERSION_NOW)->cainfo; is_readable(own)) {
    return own;
  }
  const auto* const found = std::find_if(kPlaces.begin(), kPlaces.end(), is_readable);
  return found == kPlaces.end() ? "" : *found;
}

std::string ca_variable_in(std::string_view message) {
  for (const char* const name :
       {"AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"}) {
    const std::string path = environment(name);
    if (!path.empty() && message.find(path) != message.npos) return name;
  }
  return "";
}

}  // namespace tensorizer
