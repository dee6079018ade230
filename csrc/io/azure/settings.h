// Where an account's blobs are, and with which credentials they are asked for: from the caller's
// options, and from the variables that Azure's own tools read.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "io/azure/options.h"

namespace tensorizer {

// At most one of them is not empty.
struct AzureCredentials {
  bool operator==(const AzureCredentials&) const = default;

  std::string bearer_token;
  std::string sas_token;  // the parameters, without "?"
  std::vector<std::byte> account_key;
};

struct AzureSettings {
  std::string url;  // of the account, without a slash at the end
  AzureCredentials credentials;
};

// Options come first, then AZURE_STORAGE_CONNECTION_STRING, then AZURE_STORAGE_SAS_TOKEN and
// AZURE_STORAGE_KEY. What the variables say of another account is ignored: a SAS token must not be
// sent to an account that it is not for. Throws Error(InvalidArgument) for what is malformed; the
// messages show no secret.
AzureSettings azure_settings(const std::string& account, const AzureOptions& options);

}  // namespace tensorizer
