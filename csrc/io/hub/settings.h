// Where the Hub is, and with which token it is asked: from the caller's options, and from the
// variables and files that huggingface_hub reads.
#pragma once

#include <string>

#include "io/hub/options.h"

namespace tensorizer {

struct HubSettings {
  std::string url;    // of the Hub, without a slash at the end
  std::string token;  // empty if there is none
};

// Throws Error(InvalidArgument) for what is malformed, and if the variables say that the Hub must
// not be asked. The messages show no secret.
HubSettings hub_settings(const HubOptions& options);

}  // namespace tensorizer
