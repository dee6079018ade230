#include "io/azure/options.h"

namespace tensorizer {

std::vector<Option> azure_options(AzureOptions& azure) {
  return {
      text_option("az_endpoint", "a URL or a host", azure.endpoint),
      secret_option("az_account_key", azure.account_key),
      secret_option("az_sas_token", azure.sas_token),
      secret_option("az_bearer_token", azure.bearer_token),
      bool_option("force_http", azure.force_http),
  };
}

}  // namespace tensorizer
