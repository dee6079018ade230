#include "io/azure/open.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "io/azure/settings.h"
#include "io/http/client.h"
#include "io/http/open.h"
#include "io/http/operation.h"
#include "io/http/swap.h"
#include "io/secret.h"
#include "io/uri.h"

namespace tensorizer {

namespace {

// The account becomes part of a host's name.
bool is_account(std::string_view text) {
  return !text.empty() && text.size() <= 63 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || is_digit(c) || c == '-';
  });
}

AzureName parsed(const std::string& uri) {
  const std::string rest = split_uri(uri).rest;
  const std::string label = quote(without_secrets(uri), 4096);
  const std::size_t first = std::min(rest.find('/'), rest.size());
  const std::size_t second = std::min(rest.find('/', first + 1), rest.size());
  if (rest.substr(0, first).find('@') != rest.npos || rest.find("sig=") != rest.npos) {
    throw Error(ErrorKind::InvalidArgument,
                label +
                    " was given with a user or a token, which az:// does not support: use the "
                    "options 'az_account_key', 'az_sas_token' and 'az_bearer_token'");
  }
  if (second <= first + 1 || second + 1 >= rest.size()) {
    throw Error(ErrorKind::InvalidArgument,
                label + " names no blob: write az://ACCOUNT/CONTAINER/KEY");
  }
  AzureName name{rest.substr(0, first), rest.substr(first + 1, second - first - 1),
                 rest.substr(second + 1)};
  // URLs with such a segment mean another one.
  const std::string path = "/" + name.container + "/" + name.key + "/";
  if (path.find("/../") != path.npos || path.find("/./") != path.npos) {
    throw Error(ErrorKind::InvalidArgument,
                label + " has a segment '.' or '..', which no blob can be asked for by");
  }
  if (!is_account(name.account)) {
    throw Error(ErrorKind::InvalidArgument,
                label +
                    " does not begin with the name of an account, which has lower-case letters "
                    "and digits: write az://ACCOUNT/CONTAINER/KEY");
  }
  return name;
}

template <typename Options>
HttpAccess access_to(const std::string& uri, const Options& options) {
  const HttpOptions http = options_from(options.given, &http_options);
  return {azure_endpoint(parsed(uri), options_from(options.given, &azure_options), http),
          http_pool(options.access.get(), http)};
}

std::unique_ptr<Source> open_azure_source(const std::string& uri, const SourceOptions& options,
                                          Cancel& cancel) {
  return http_source(access_to(uri, options), options, cancel);
}

std::unique_ptr<Sink> open_azure_sink(const std::string& uri, const SinkOptions& options, Cancel&) {
  return azure_sink(access_to(uri, options), options.part_size);
}

std::unique_ptr<SharedSink> open_shared_azure_sink(const std::string& uri,
                                                   const std::optional<std::string>& joined,
                                                   const SinkOptions& options, Cancel&) {
  return shared_azure_sink(access_to(uri, options), joined);
}

std::string azure_sibling(const std::string& uri, const std::string& name,
                          const OptionList& given) {
  const AzureSettings settings =
      azure_settings(parsed(uri).account, options_from(given, &azure_options));
  if (("&" + settings.credentials.sas_token + "&").find("&sr=b&") != std::string::npos) {
    throw Error(ErrorKind::InvalidArgument,
                "the SAS token for " + quote(uri, 4096) +
                    " is valid for this one blob and not for those beside it: use a token for the "
                    "container");
  }
  return key_beside(uri, name);
}

void remove_azure_blob(const std::string& uri, const SinkOptions& options, Cancel& cancel) {
  HttpClient client(access_to(uri, options));
  remove_file(client, cancel);
}

bool swap_azure_blob(const std::string& uri, std::optional<ConstBytes> known, ConstBytes next,
                     const SinkOptions& options, Cancel& cancel) {
  // 409: there is a blob already.
  HttpPut put{{kBlockBlob, kBlobContentType}, &fault_of_azure, {412, 409}};
  return swap_http_file(access_to(uri, options), std::move(put), known, next, cancel);
}

constexpr UriScheme kSchemes[] = {{"az", "az://"}};

}  // namespace

const PlaceKind azure_blobs{
    .folder = "azure",
    .schemes = kSchemes,
    .options = &checks<&azure_options>,
    .open_source = &open_azure_source,
    .open_sink = &open_azure_sink,
    .open_shared_sink = &open_shared_azure_sink,
    .sibling = &azure_sibling,
    .file_name = &last_of_key,
    .remove = &remove_azure_blob,
    .swap = &swap_azure_blob,
};

}  // namespace tensorizer
