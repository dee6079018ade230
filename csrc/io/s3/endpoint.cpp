#include <openssl/evp.h>

#include <curl/curl.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <mutex>

#include "base/error.h"
#include "base/text.h"
#include "base/world.h"
#include "codec/hmac.h"
#include "io/aws/config.h"
#include "io/aws/credentials.h"
#include "io/aws/sign.h"
#include "io/s3/open.h"
#include "io/secret.h"
#include "io/service_url.h"
#include "io/xml.h"

namespace tensorizer {

namespace {

constexpr std::string_view kGoogle = "https://storage.googleapis.com";
constexpr std::time_t kMostSkew = 15 * 60;  // seconds between a signature and the server's clock

bool is_host_label(std::string_view bucket) {
  return bucket.size() <= 63 && std::all_of(bucket.begin(), bucket.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || is_digit(c) || c == '-';
         });
}

std::string aws_endpoint(const std::string& region, bool force_http) {
  return (force_http ? "http://s3." : "https://s3.") + region + ".amazonaws.com" +
         (region.starts_with("cn-") ? ".cn" : "");
}

// Returns true for stores that find a bucket only by the host name (CoreWeave's).
bool wants_host_names(const std::string& endpoint) {
  const std::size_t begin = endpoint.find("://") + 3;
  const std::string_view host =
      std::string_view(endpoint).substr(begin, endpoint.find_first_of(":/", begin) - begin);
  return host.ends_with("cwobject.com") || host.ends_with("cwlota.com");
}

// Returns the three headers for encryption with a key of the customer (SSE-C).
NamedTexts customer_key_headers(const std::string& given) {
  constexpr std::size_t kKeySize = 32;
  const std::string key = resolve_secret(given);
  const auto raw = from_base64(key);
  if (!raw || raw->size() != kKeySize) {
    throw Error(ErrorKind::InvalidArgument,
                "option 's3_sse_customer_key' must be 32 bytes in base64");
  }
  std::array<std::byte, 16> md5;
  unsigned int size = 0;
  if (EVP_Digest(raw->data(), kKeySize, reinterpret_cast<unsigned char*>(md5.data()), &size,
                 EVP_md5(), nullptr) != 1) {
    throw Error(ErrorKind::Unavailable, "libcrypto provides no MD5, which customer keys need");
  }
  const std::string prefix = "x-amz-server-side-encryption-customer-";
  return {{prefix + "algorithm", "AES256"},
          {prefix + "key", key},
          {prefix + "key-MD5", to_base64(md5)}};
}

// The parts of an object's URL.
struct Address {
  std::string scheme;    // with "://"
  std::string host;      // with its port
  std::string path;      // escaped
  bool by_host = false;  // the bucket is in the host's name
};

Address address_of(const std::string& endpoint, const S3Name& name, bool by_host) {
  const std::size_t host = endpoint.find("://") + 3;
  const std::size_t slash = std::min(endpoint.find('/', host), endpoint.size());
  Address address;
  address.by_host = by_host;
  address.scheme = endpoint.substr(0, host);
  address.host = (by_host ? name.bucket + "." : "") + endpoint.substr(host, slash - host);
  std::string folder = endpoint.substr(slash);
  while (folder.ends_with('/')) folder.pop_back();
  address.path = folder + (by_host ? "" : "/" + escape_uri(name.bucket, false)) + "/" +
                 escape_uri(name.key, true);
  return address;
}

std::string uri_of(const std::string& scheme, const S3Name& name) {
  return scheme + "://" + name.bucket + "/" + name.key;
}

class S3Endpoint final : public HttpEndpoint {
 public:
  S3Endpoint(const std::string& scheme, const S3Name& name, const S3Options& options,
             const HttpOptions& http, std::shared_ptr<S3CredentialsChain> credentials)
      : google_(scheme == "gs"),
        name_(name),
        options_(options),
        headers_(header_lines(http)),
        label_(quote(without_secrets(uri_of(scheme, name)), 4096)),
        credentials_(credentials ? std::move(credentials)
                                 : std::make_shared<S3CredentialsChain>(options, http)) {
    if (!options.sse_customer_key.empty())
      key_headers_ = customer_key_headers(options.sse_customer_key);
    add_url_secrets(secrets_, uri_of(scheme, name));
    for (const std::string& line : headers_) add_header_secrets(secrets_, line);
    for (const auto& [name, value] : key_headers_) {
      if (name.find("customer-key") != name.npos) secrets_.push_back(value);
    }
  }

  void complete(HttpRequest& request, Cancel& cancel) override {
    const S3Credentials credentials = credentials_->get(cancel);
    std::unique_lock lock(mutex_);
    if (!settings_) {
      // Unlocked, because it reads files, and checks for a cancel, which may run code of the host.
      lock.unlock();
      S3Settings found = find_settings(cancel);
      lock.lock();
      if (!settings_) settings_ = std::move(found);
    }
    const Address address = find_address();
    if (!options_.version_id.empty() && request.method == "GET") {
      request.query.emplace_back("versionId", options_.version_id);
    }
    request.url = address.scheme + address.host + address.path;
    if (!request.query.empty()) request.url += "?" + escape_query(request.query);
    // A signature is valid for one host only, so redirects are not followed. A password in ~/.netrc
    // must not be sent in addition to it.
    request.follow_redirects = false;
    request.log_in = false;
    request.path_as_is = true;
    request.headers.insert(request.headers.end(), headers_.begin(), headers_.end());
    const auto add = [&](const std::string& name, const std::string& value) {
      request.headers.push_back(name + ": " + value);
    };
    if (options_.requester_pays) add("x-amz-request-payer", "requester");
    // Aborting an upload needs no key.
    if (request.method != "DELETE") {
      for (const auto& [name, value] : key_headers_) add(name, value);
    }
    request.secrets = secrets_;
    if (credentials.anonymous) return;
    request.shown = credentials.key_id;
    request.secrets.insert(request.secrets.end(),
                           {credentials.key_id, credentials.secret, credentials.session_token});
    const std::time_t now = WallClock::seconds() + clock_offset_;
    request.signed_at = now;
    if (options_.signs_url && request.method == "GET") {
      sign_url(request, address, credentials, now);
      return;
    }
    if (!credentials.session_token.empty()) add("x-amz-security-token", credentials.session_token);
    add("x-amz-content-sha256", std::string(kUnsignedPayload));
    add("x-amz-date", signing_time(now));

    SignedRequest to_sign{request.method,
                          address.path,
                          request.query,
                          {{"host", address.host}},
                          std::string(kUnsignedPayload)};
    for (const std::string& line : request.headers) {
      const std::size_t colon = line.find(": ");
      const std::string name = line.substr(0, colon);
      // Other headers are not signed, because proxies may change them.
      if (lower_case(name).starts_with("x-amz-")) {
        to_sign.headers.emplace_back(name, line.substr(colon + 2));
      }
    }
    const std::string signature = authorization(to_sign, {settings_->region, "s3", now},
                                                credentials.key_id, credentials.secret);
    request.passing_secrets.push_back(signature.substr(signature.rfind('=') + 1));
    add("Authorization", signature);
  }

  HttpRefusal learn(const HttpRequest& request, const HttpOutcome& outcome) override {
    HttpRefusal refusal;
    const HttpAnswer& answer = outcome.answer;
    if (outcome.failure || answer.status < 300) return refusal;
    const std::string code = xml_text(answer.refusal, "Code").value_or("");
    const std::string message = xml_text(answer.refusal, "Message").value_or("");
    if (!code.empty()) refusal.what = code + (message.empty() ? "" : ": " + message);

    const bool is_refused = answer.status == 401 || answer.status == 403;
    if (is_refused && request.shown.empty() && options_.anonymous_without_keys) {
      refusal.note =
          "the request was not signed, because there are no credentials for S3 in the options "
          "(s3_access_key_id), the environment, ~/.aws, ~/.s3cfg and the machine's metadata";
    }

    const std::lock_guard lock(mutex_);
    const bool without_reason = is_refused && code.empty() && is_skewed(request, answer);
    if (code == "ExpiredToken" || code == "TokenRefreshRequired" || code == "InvalidToken") {
      refusal.kind = ErrorKind::PermissionDenied;
      refusal.recovered = credentials_->refused(request.shown);
    } else if (code == "RequestTimeTooSkewed" || without_reason) {
      refusal.kind = ErrorKind::PermissionDenied;
      refusal.recovered = set_clock(answer.header("date"));
    } else if (answer.status == 301 || answer.status == 307 || answer.status == 400 ||
               answer.status == 403) {
      refusal.recovered = set_region(answer);
    }
    if (code == "RequestTimeout" || code == "SlowDown" || code == "ConditionalRequestConflict") {
      refusal.temporary = true;
    }
    if (answer.status == 400 && !refusal.kind) refusal.kind = kind_of_bad_request(code);
    return refusal;
  }

  const std::string& label() const override { return label_; }

 private:
  S3Settings find_settings(Cancel& cancel) const {
    S3Settings settings = S3Config(options_, cancel).settings();
    if (!options_.force_http) {
      require_https(without_secrets(options_.endpoint), "option 's3_endpoint'");
    }
    if (settings.endpoint.empty() && google_) settings.endpoint = kGoogle;
    if (settings.region.empty()) settings.region = google_ ? "auto" : "us-east-1";
    return settings;
  }

  Address find_address() const {
    const std::string& given = settings_->endpoint;
    const std::string endpoint =
        given.empty() ? aws_endpoint(settings_->region, settings_->force_http) : given;
    // A bucket with a dot in its name would not match the server's wildcard certificate.
    bool by_host = wants_host_names(endpoint) || (given.empty() && is_host_label(name_.bucket));
    if (!settings_->addressing.empty()) by_host = settings_->addressing == "virtual";
    return address_of(endpoint, name_, by_host);
  }

  void sign_url(HttpRequest& request, const Address& address, const S3Credentials& credentials,
                std::time_t now) const {
    std::string folder = address.path;
    if (address.by_host) folder = "/" + escape_uri(name_.bucket, false) + folder;
    SignedRequest to_sign{request.method, folder, request.query, {}, {}};
    for (const std::string& line : request.headers) {
      const std::size_t colon = line.find(": ");
      to_sign.headers.emplace_back(line.substr(0, colon), line.substr(colon + 2));
    }
    request.url += request.query.empty() ? "?" : "&";
    request.url += signed_parameters(to_sign, last_moment(now), credentials.key_id,
                                     credentials.secret, credentials.session_token);
    add_url_secrets(request.passing_secrets, request.url);
  }

  bool set_region(const HttpAnswer& answer) {
    std::string region(answer.header("x-amz-bucket-region"));
    if (region.empty()) region = xml_text(answer.refusal, "Region").value_or("");
    if (region.empty() || region == settings_->region || !is_host_label(region)) return false;
    settings_->region = region;
    return true;
  }

  // Returns whether the request's signature is too old or too new for the server. The answer to a
  // HEAD does not say why it is refused, and that to another request may break off before it does.
  static bool is_skewed(const HttpRequest& request, const HttpAnswer& answer) {
    const std::time_t there = curl_getdate(std::string(answer.header("date")).c_str(), nullptr);
    return there != -1 && request.signed_at && std::abs(there - *request.signed_at) > kMostSkew;
  }

  // Returns true if the date is valid, also if another thread has already set the offset.
  bool set_clock(std::string_view date) {
    const std::time_t there = curl_getdate(std::string(date).c_str(), nullptr);
    if (there == -1) return false;
    clock_offset_ = there - WallClock::seconds();
    return true;
  }

  static ErrorKind kind_of_bad_request(const std::string& code) {
    return code.starts_with("InvalidAccessKey") || code == "AuthorizationHeaderMalformed"
               ? ErrorKind::PermissionDenied
               : ErrorKind::Unavailable;
  }

  const bool google_;
  const S3Name name_;
  const S3Options options_;
  const std::vector<std::string> headers_;
  const std::string label_;
  const std::shared_ptr<S3CredentialsChain> credentials_;
  NamedTexts key_headers_;
  Secrets secrets_;  // without those of the credentials

  std::mutex mutex_;  // guards what follows
  std::optional<S3Settings> settings_;
  std::time_t clock_offset_ = 0;
};

}  // namespace

std::unique_ptr<HttpEndpoint> s3_endpoint(const std::string& scheme, const S3Name& name,
                                          const S3Options& options, const HttpOptions& http,
                                          std::shared_ptr<S3CredentialsChain> credentials) {
  return std::make_unique<S3Endpoint>(scheme, name, options, http, std::move(credentials));
}

}  // namespace tensorizer
