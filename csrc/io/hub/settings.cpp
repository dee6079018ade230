#include "io/hub/settings.h"

#include <algorithm>
#include <fstream>
#include <string_view>

#include "base/environment.h"
#include "base/error.h"
#include "base/text.h"
#include "io/secret.h"
#include "io/service_url.h"
#include "io/uri.h"

namespace tensorizer {

namespace {

constexpr std::size_t kLongestToken = 4096;

bool is_on(const char* variable) {
  const std::string value = lower_case(environment(variable));
  return value == "1" || value == "on" || value == "yes" || value == "true";
}

// Returns the file in which `hf auth login` stores the token.
std::string token_file() {
  const std::string given = environment("HF_TOKEN_PATH");
  if (!given.empty()) return expand_home(given);
  std::string home = environment("HF_HOME");
  if (home.empty()) {
    const std::string cache = environment("XDG_CACHE_HOME");
    home = (cache.empty() ? "~/.cache" : cache) + "/huggingface";
  }
  return expand_home(home) + "/token";
}

std::string checked_token(std::string token, const std::string& name) {
  token = trimmed(token);
  if (std::ranges::all_of(token, [](unsigned char c) { return c > 0x20 && c < 0x7F; })) {
    return token;
  }
  throw Error(ErrorKind::InvalidArgument, name + " must be one word of printable ASCII text");
}

std::string find_token(const HubOptions& options) {
  if (!options.token.empty()) {
    return checked_token(resolve_secret(options.token), "option 'hf_token'");
  }
  if (is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN")) return "";
  const std::string variable = environment({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"});
  if (!variable.empty()) return checked_token(variable, "HF_TOKEN");
  std::string token(kLongestToken, '\0');
  std::ifstream file(token_file());
  file.read(token.data(), static_cast<std::streamsize>(token.size()));
  token.resize(static_cast<std::size_t>(file.gcount()));
  return checked_token(token, "the token in " + quote(token_file(), 4096));
}

}  // namespace

HubSettings hub_settings(const HubOptions& options) {
  for (const char* const variable : {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}) {
    if (is_on(variable)) {
      throw Error(ErrorKind::InvalidArgument,
                  std::string(variable) +
                      " is set, so the Hub is not asked: load a path of this "
                      "machine, or unset the variable");
    }
  }
  const std::string variable = environment("HF_ENDPOINT");
  std::string url = options.endpoint.empty() ? variable : options.endpoint;
  const std::string what = options.endpoint.empty() ? "HF_ENDPOINT" : "option 'hf_endpoint'";
  if (url.empty()) return {"https://huggingface.co", find_token(options)};
  if (options.force_http && url.find("://") == url.npos) url.insert(0, "http://");
  url = options.endpoint.empty() ? full_service_url(url, what) : service_url(url, false, what);
  if (!options.force_http) require_https(url, what);
  return {url, find_token(options)};
}

}  // namespace tensorizer
