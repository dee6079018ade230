// The certificate authorities of the system.
#pragma once

#include <span>
#include <string>

namespace tensorizer {

// Returns the first of these files that can be read; empty if none can.
std::string first_readable(std::span<const char* const> files);

// Returns the file with the authorities that this system trusts; empty if none was found. It is the
// one that the environment variable CURL_CA_BUNDLE or REQUESTS_CA_BUNDLE names, which may also be a
// folder, or that SSL_CERT_FILE names if it can be read, or else the one that libcurl was built to
// use, or one where some other distribution of Linux keeps it: a libcurl that was built on one
// distribution may run on another.
std::string system_ca_bundle();

}  // namespace tensorizer
