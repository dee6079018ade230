#include "io/ca_bundle.h"

#include <curl/curl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

namespace tensorizer {

namespace {

constexpr std::array<const char*, 5> kPlaces{
    "/etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Arch, Gentoo
    "/etc/pki/tls/certs/ca-bundle.crt",                   // Fedora, RHEL, Amazon Linux
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // newer ones of these
    "/etc/ssl/ca-bundle.pem",                             // openSUSE
    "/etc/ssl/cert.pem",                                  // Alpine
};

}  // namespace

std::string first_readable(std::span<const char* const> files) {
  for (const char* const file : files) {
    if (file != nullptr && ::access(file, R_OK) == 0) return file;
  }
  return "";
}

std::string system_ca_bundle() {
  for (const char* const name : {"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"}) {
    const char* const given = std::getenv(name);
    if (given != nullptr && *given != '\0') return given;
  }
  const std::array<const char*, 2> preferred{std::getenv("SSL_CERT_FILE"),
                                             curl_version_info(CURLVERSION_NOW)->cainfo};
  const std::string found = first_readable(preferred);
  return found.empty() ? first_readable(kPlaces) : found;
}

}  // namespace tensorizer
