#include "io/azure/settings.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/environment.h"
#include "base/error.h"
#include "base/text.h"
#include "codec/hmac.h"
#include "io/http/options.h"
#include "io/secret.h"
#include "io/service_url.h"
#include "io/url.h"

namespace tensorizer {

namespace {

constexpr const char* kConnectionString = "AZURE_STORAGE_CONNECTION_STRING";
constexpr std::string_view kSuffix = "core.windows.net";
// What "UseDevelopmentStorage=true" stands for: an emulator on this machine, whose key is public.
constexpr std::string_view kEmulator =
    "AccountName=devstoreaccount1;AccountKey="
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVEr"
    "Cz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1";

// The settings of a connection string, by their names in lower case.
using ConnectionSettings = std::map<std::string, std::string>;

ConnectionSettings connection_settings(std::string_view text) {
  ConnectionSettings settings;
  while (!text.empty()) {
    const std::string_view setting = trimmed(text.substr(0, text.find(';')));
    text.remove_prefix(std::min(text.find(';'), text.size() - 1) + 1);
    const std::size_t equals = setting.find('=');
    if (setting.empty()) continue;
    if (equals == setting.npos) {
      throw Error(ErrorKind::InvalidArgument, std::string(kConnectionString) +
                                                  " has a setting without a value: it must be "
                                                  "NAME=VALUE;NAME=VALUE");
    }
    settings[lower_case(setting.substr(0, equals))] = setting.substr(equals + 1);
  }
  if (lower_case(settings["usedevelopmentstorage"]) == "true") {
    settings.merge(connection_settings(kEmulator));
  }
  return settings;
}

// Returns the account in the URL of its blobs: the path, or the beginning of the host's name.
std::string account_of(const std::string& url) {
  const std::optional<UrlParts> parts = url_parts(url);
  if (!parts) return {};
  std::string path = parts->path;
  path.erase(0, std::min(path.find_first_not_of('/'), path.size()));
  return path.empty() ? parts->host.substr(0, parts->host.find('.'))
                      : path.substr(0, path.find('/'));
}

std::vector<std::byte> decoded_key(const std::string& given, const std::string& name) {
  const std::string key(trimmed(resolve_secret(given)));
  auto bytes = from_base64(key);
  if (key.empty() || !bytes) {
    throw Error(ErrorKind::InvalidArgument,
                name + " must be the key of an account, which is base64");
  }
  return *std::move(bytes);
}

std::string checked_sas(const std::string& given, const std::string& name) {
  std::string token(trimmed(resolve_secret(given)));
  if (token.starts_with('?')) token.erase(0, 1);
  const bool is_plain = std::all_of(token.begin(), token.end(), [](unsigned char c) {
    return c > 0x20 && c < 0x7F && c != '#' && c != '"' && c != '<' && c != '>';
  });
  const std::string parameters = "&" + token + "&";
  if (is_plain && token.find("://") == token.npos && token.find('?') == token.npos &&
      parameters.find("&sig=") != token.npos && parameters.find("&sig=&") == token.npos) {
    return token;
  }
  throw Error(ErrorKind::InvalidArgument,
              name +
                  " must be a SAS token: the parameters of a URL, behind its '?', with a "
                  "signature (sig=)");
}

AzureCredentials credentials_for(const std::string& account, const AzureOptions& options,
                                 ConnectionSettings& connection) {
  AzureCredentials credentials;
  const bool is_ours = trimmed(environment("AZURE_STORAGE_ACCOUNT")) == account;
  const std::string sas = is_ours ? environment("AZURE_STORAGE_SAS_TOKEN") : "";
  const std::string key = is_ours ? environment("AZURE_STORAGE_KEY") : "";
  if (!options.bearer_token.empty()) {
    credentials.bearer_token = resolve_secret(options.bearer_token);
    if (credentials.bearer_token.empty() ||
        !std::ranges::all_of(credentials.bearer_token,
                             [](unsigned char c) { return c > 0x20 && c < 0x7F; })) {
      throw Error(ErrorKind::InvalidArgument,
                  "option 'az_bearer_token' must be one word of printable ASCII text");
    }
  } else if (!options.sas_token.empty()) {
    credentials.sas_token = checked_sas(options.sas_token, "option 'az_sas_token'");
  } else if (!options.account_key.empty()) {
    credentials.account_key = decoded_key(options.account_key, "option 'az_account_key'");
  } else if (const std::string& shared = connection["sharedaccesssignature"]; !shared.empty()) {
    credentials.sas_token =
        checked_sas(shared, "the SharedAccessSignature of " + std::string(kConnectionString));
  } else if (const std::string& shared = connection["accountkey"]; !shared.empty()) {
    credentials.account_key =
        decoded_key(shared, "the AccountKey of " + std::string(kConnectionString));
  } else if (!sas.empty()) {
    credentials.sas_token = checked_sas(sas, "AZURE_STORAGE_SAS_TOKEN");
  } else if (!key.empty()) {
    credentials.account_key = decoded_key(key, "AZURE_STORAGE_KEY");
  }
  return credentials;
}

// Returns the URL of the account.
std::string url_of(const std::string& account, const AzureOptions& options,
                   ConnectionSettings& connection) {
  std::string what = "option 'az_endpoint'";
  std::string url = options.endpoint;
  if (url.empty()) {
    what = "the BlobEndpoint of " + std::string(kConnectionString);
    url = connection["blobendpoint"];
  } else if (options.force_http && url.find("://") == std::string::npos) {
    url.insert(0, "http://");
  }
  if (url.empty()) {
    const std::string& suffix = connection["endpointsuffix"];
    const bool plain = connection["defaultendpointsprotocol"] == "http";
    what = plain ? "the DefaultEndpointsProtocol of " + std::string(kConnectionString)
                 : "the account's host";
    url = (plain ? "http://" : "https://") + account + ".blob." +
          (suffix.empty() ? std::string(kSuffix) : suffix);
  }
  std::string checked =
      options.endpoint.empty() ? full_service_url(url, what) : service_url(url, false, what);
  if (!options.force_http && lower_case(connection["usedevelopmentstorage"]) != "true") {
    require_https(checked, what);
  }
  if (!options.endpoint.empty() && account_of(checked) != account) {
    checked += "/" + account;
  }
  return checked;
}

}  // namespace

AzureSettings azure_settings(const std::string& account, const AzureOptions& options) {
  const bool needs_none = !options.endpoint.empty() &&
                          !(options.bearer_token + options.sas_token + options.account_key).empty();
  auto connection = connection_settings(needs_none ? "" : environment(kConnectionString));
  std::string& owner = connection["accountname"];
  if (owner.empty()) owner = account_of(connection["blobendpoint"]);
  if (owner != account) connection.clear();
  AzureCredentials credentials = credentials_for(account, options, connection);
  return {url_of(account, options, connection), std::move(credentials)};
}

}  // namespace tensorizer
