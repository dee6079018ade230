// The certificate authorities of the system.
#pragma once

#include <string>
#include <string_view>

namespace tensorizer {

// Returns the file with the authorities that this system trusts; empty if none was found. It is the
// file or folder that the environment variable CURL_CA_BUNDLE, REQUESTS_CA_BUNDLE or SSL_CERT_FILE
// names, readable or not, or else the file that libcurl was built to use, or one where some other
// distribution of Linux keeps it: a libcurl that was built on one distribution may run on another.
std::string system_ca_bundle();

// Returns the environment variable that names the authorities whose path is in `message`; empty if
// there is none.
std::string ca_variable_in(std::string_view message);

}  // namespace tensorizer
