// The options for Azure.
#pragma once

#include <string>
#include <vector>

#include "io/option.h"

namespace tensorizer {

// The caller's options for Azure's blobs. Empty ones were not given. Secrets may be references to
// secrets (io/secret.h).
struct AzureOptions {
  std::string endpoint;  // a URL, or a host
  std::string account_key;
  std::string sas_token;
  std::string bearer_token;
  bool force_http = false;
};

// Returns options that set the members of `azure`. They keep a reference to it.
std::vector<Option> azure_options(AzureOptions& azure);

}  // namespace tensorizer
