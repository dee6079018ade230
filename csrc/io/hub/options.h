// The options for the Hugging Face Hub.
#pragma once

#include <string>
#include <vector>

#include "io/option.h"

namespace tensorizer {

// The caller's options. Empty ones were not given.
struct HubOptions {
  std::string endpoint;  // a URL, or a host
  std::string token;     // may be a reference to a secret (io/secret.h)
  bool force_http = false;
};

// Returns options that set the members of `hub`. They keep a reference to it.
std::vector<Option> hub_options(HubOptions& hub);

}  // namespace tensorizer
