#include "io/hub/options.h"

namespace tensorizer {

std::vector<Option> hub_options(HubOptions& hub) {
  return {
      text_option("hf_endpoint", "a URL or a host", hub.endpoint),
      secret_option("hf_token", hub.token),
      bool_option("force_http", hub.force_http),
  };
}

}  // namespace tensorizer
