#include <algorithm>
#include <ctime>
#include <mutex>

#include "base/error.h"
#include "base/text.h"
#include "base/world.h"
#include "codec/hmac.h"
#include "io/azure/open.h"
#include "io/azure/settings.h"
#include "io/secret.h"
#include "io/uri.h"
#include "io/url.h"
#include "io/xml.h"

namespace tensorizer {

namespace {

// The version of the protocol.
constexpr std::string_view kVersion = "2021-12-02";

// Returns a time as "Fri, 24 May 2013 00:00:00 GMT", in every locale.
std::string http_date(std::time_t time) {
  constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm utc{};
  gmtime_r(&time, &utc);
  char text[32];
  const std::size_t size = std::strftime(text, sizeof(text), " %Y %H:%M:%S GMT", &utc);
  const std::string day = std::to_string(100 + utc.tm_mday).substr(1);
  return std::string(kDays[utc.tm_wday]) + ", " + day + " " + kMonths[utc.tm_mon] +
         std::string(text, size);
}

// Returns the names in lower case, sorted.
NamedTexts sorted(NamedTexts texts) {
  for (auto& [name, value] : texts) name = lower_case(name);
  std::stable_sort(texts.begin(), texts.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  return texts;
}

// Returns what a signature by the key of an account covers. `path`: that of the URL, escaped.
std::string string_to_sign(const HttpRequest& request, const std::string& account,
                           const std::string& path) {
  NamedTexts headers;
  for (const std::string& line : request.headers) {
    const std::size_t colon = line.find(':');
    headers.emplace_back(line.substr(0, colon), trimmed(std::string_view(line).substr(colon + 1)));
  }
  if (request.body != nullptr && request.body->size() > 0) {
    headers.emplace_back("content-length", std::to_string(request.body->size()));
  }
  headers = sorted(std::move(headers));
  std::string text = request.method + "\n";
  for (const std::string_view wanted :
       {"content-encoding", "content-language", "content-length", "content-md5", "content-type",
        "date", "if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range"}) {
    for (const auto& [name, value] : headers) {
      if (name == wanted) text += value;
    }
    text += "\n";
  }
  for (const auto& [name, value] : headers) {
    if (name.starts_with("x-ms-")) text += name + ":" + value + "\n";
  }
  text += "/" + account + path;
  for (const auto& [name, value] : sorted(request.query)) text += "\n" + name + ":" + value;
  return text;
}

class AzureEndpoint final : public HttpEndpoint {
 public:
  AzureEndpoint(const AzureName& name, const AzureOptions& options, const HttpOptions& http)
      : name_(name),
        options_(options),
        headers_(header_lines(http)),
        label_(quote(
            without_secrets("az://" + name.account + "/" + name.container + "/" + name.key), 4096)),
        settings_(azure_settings(name.account, options)) {
    for (const std::string& line : headers_) add_header_secrets(secrets_, line);
  }

  void complete(HttpRequest& request, Cancel&) override {
    const std::lock_guard lock(mutex_);
    const AzureCredentials& credentials = settings_.credentials;
    const std::string path =
        "/" + escape_uri(name_.container, false) + "/" + escape_uri(name_.key, true);
    request.url = settings_.url + path;
    std::string query = escape_query(request.query);
    request.secrets = secrets_;
    if (!credentials.sas_token.empty()) {
      query += (query.empty() ? "" : "&") + credentials.sas_token;
      add_url_secrets(request.secrets, settings_.url + "?" + credentials.sas_token);
    }
    if (!query.empty()) request.url += "?" + query;
    // A signature is valid for one host only, so redirects are not followed.
    request.follow_redirects = false;
    request.log_in = false;
    request.path_as_is = true;
    request.headers.insert(request.headers.end(), headers_.begin(), headers_.end());
    // Other programs sign this one, and none signs "Range".
    for (std::string& line : request.headers) {
      if (line.starts_with("Range: ")) line.insert(0, "x-ms-");
    }
    request.headers.push_back("x-ms-version: " + std::string(kVersion));
    request.headers.push_back("x-ms-date: " + http_date(WallClock::seconds()));
    request.shown = std::to_string(renewals_);
    if (!credentials.bearer_token.empty()) {
      request.headers.push_back("Authorization: Bearer " + credentials.bearer_token);
      request.secrets.push_back(credentials.bearer_token);
    } else if (!credentials.account_key.empty()) {
      const std::size_t host = settings_.url.find("://") + 3;
      const std::string folder =
          settings_.url.substr(std::min(settings_.url.find('/', host), settings_.url.size()));
      const std::string text = string_to_sign(request, name_.account, folder + path);
      const std::string signature = to_base64(hmac(credentials.account_key, as_bytes(text)));
      request.headers.push_back("Authorization: SharedKey " + name_.account + ":" + signature);
      request.secrets.push_back(to_base64(credentials.account_key));
      request.passing_secrets.push_back(signature);
    }
  }

  HttpRefusal learn(const HttpRequest& request, const HttpOutcome& outcome) override {
    HttpRefusal refusal;
    const HttpAnswer& answer = outcome.answer;
    if (outcome.failure || answer.status < 300) return refusal;
    std::string code = xml_text(answer.refusal, "Code").value_or("");
    if (code.empty()) code = answer.header("x-ms-error-code");
    // The identifier of the request and the time follow in lines of their own.
    std::string message = xml_text(answer.refusal, "Message").value_or("");
    message.resize(std::min(message.find('\n'), message.size()));
    if (!code.empty()) refusal.what = code + (message.empty() ? "" : ": " + message);
    if (code == "InvalidBlockList") {
      refusal.note =
          "another save of this blob has ended meanwhile, which drops the blocks of this one";
    }
    if (code == "InvalidBlobOrBlock") {
      refusal.note =
          "another program has begun to upload this blob, with names of blocks that have another "
          "length: save under another name, or delete the blob, or wait a week, after which Azure "
          "drops its blocks";
    }
    const bool is_refused =
        answer.status == 401 || answer.status == 403 || code == "PublicAccessNotPermitted";
    if (!is_refused) return refusal;
    refusal.kind = ErrorKind::PermissionDenied;
    const std::lock_guard lock(mutex_);
    if (settings_.credentials == AzureCredentials{}) {
      refusal.note =
          "the request was not signed, because there are no credentials for this account in the "
          "options (az_account_key, az_sas_token, az_bearer_token) and the environment "
          "(AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT with AZURE_STORAGE_KEY or "
          "AZURE_STORAGE_SAS_TOKEN)";
      return refusal;
    }
    refusal.recovered = request.shown != std::to_string(renewals_) || renew();
    return refusal;
  }

  const std::string& label() const override { return label_; }

 private:
  // Reads the credentials again, because a token may have expired. Returns true if there are
  // others.
  bool renew() {
    AzureSettings now = azure_settings(name_.account, options_);
    if (now.credentials == settings_.credentials) return false;
    settings_ = std::move(now);
    ++renewals_;
    return true;
  }

  const AzureName name_;
  const AzureOptions options_;
  const std::vector<std::string> headers_;
  const std::string label_;
  Secrets secrets_;  // without those of the credentials

  std::mutex mutex_;  // guards what follows
  AzureSettings settings_;
  int renewals_ = 0;
};

}  // namespace

std::unique_ptr<HttpEndpoint> azure_endpoint(const AzureName& name, const AzureOptions& options,
                                             const HttpOptions& http) {
  return std::make_unique<AzureEndpoint>(name, options, http);
}

}  // namespace tensorizer
