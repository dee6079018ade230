#include "io/url.h"

#include <curl/curl.h>

#include <algorithm>
#include <memory>
#include <new>

#include "base/error.h"
#include "base/text.h"

namespace tensorizer {

namespace {

class Url {
 public:
  // `location` may be relative to `base`.
  explicit Url(const std::string& base, const std::string& location = "") : handle_(curl_url()) {
    status_ = set(CURLUPART_URL, base);
    // Decoding may leave a host that is another spelling of an address ("%32" is 0.0.0.2), which
    // libcurl sees only when it parses the URL again.
    if (status_ == CURLUE_OK) status_ = set(CURLUPART_URL, get(CURLUPART_URL).value_or(""));
    if (status_ == CURLUE_OK && !location.empty()) status_ = set(CURLUPART_URL, location);
  }
  ~Url() { curl_url_cleanup(handle_); }
  Url(const Url&) = delete;
  Url& operator=(const Url&) = delete;

  CURLUcode status() const noexcept { return status_; }

  // Returns null if there is no such part.
  std::optional<std::string> get(CURLUPart part, unsigned flags = 0) const {
    char* text = nullptr;
    if (curl_url_get(handle_, part, &text, flags) != CURLUE_OK) return std::nullopt;
    const std::unique_ptr<char, decltype(&curl_free)> owner(text, &curl_free);
    return text;
  }

  CURLUcode set(CURLUPart part, const std::string& text) {
    constexpr unsigned kFlags = CURLU_URLENCODE | CURLU_ALLOW_SPACE;
    return curl_url_set(handle_, part, text.c_str(), kFlags);
  }

  // Copies the part from the other URL, still escaped.
  void take(CURLUPart part, const Url& other) {
    const std::optional<std::string> text = other.get(part);
    if (text) set_escaped(part, *text);
  }

  void set_escaped(CURLUPart part, const std::string& text) {
    curl_url_set(handle_, part, text.c_str(), 0);
  }
  void remove(CURLUPart part) { curl_url_set(handle_, part, nullptr, 0); }

  std::string origin() const {
    if (status_ != CURLUE_OK) return {};
    const std::string scheme = get(CURLUPART_SCHEME).value_or("");
    if (scheme != "http" && scheme != "https") return {};
    return scheme + "://" + lower_case(get(CURLUPART_HOST).value_or("")) + ":" +
           get(CURLUPART_PORT, CURLU_DEFAULT_PORT).value_or("");
  }

 private:
  CURLU* const handle_;
  CURLUcode status_;
};

// Returns whether the parameters of a URL are a signature of S3, Google, CloudFront or Azure for
// one file. CloudFront's policies and Azure's other signatures may cover a folder.
bool is_signed(std::string_view query) {
  bool signature = false;
  bool policy = false;
  bool azure = false;
  bool blob = false;
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string parameter = lower_case(query.substr(0, end));
    query.remove_prefix(std::min(end + 1, query.size()));
    if (parameter.starts_with("x-amz-signature=") || parameter.starts_with("x-goog-signature=")) {
      return true;
    }
    signature |= parameter.starts_with("signature=");
    policy |= parameter.starts_with("policy=");
    azure |= parameter.starts_with("sig=");
    blob |= parameter == "sr=b";
  }
  return (signature && !policy) || (azure && blob);
}

std::string escaped(const std::string& text) {
  const std::unique_ptr<char, decltype(&curl_free)> owner(
      curl_easy_escape(nullptr, text.data(), static_cast<int>(text.size())), &curl_free);
  if (!owner) throw std::bad_alloc();
  return owner.get();
}

}  // namespace

std::optional<UrlParts> url_parts(const std::string& url) {
  const Url parsed(url);
  if (parsed.origin().empty()) return std::nullopt;
  UrlParts parts;
  parts.scheme = *parsed.get(CURLUPART_SCHEME);
  parts.host = lower_case(parsed.get(CURLUPART_HOST).value_or(""));
  parts.port = parsed.get(CURLUPART_PORT).value_or("");
  if (parts.port == (parts.scheme == "http" ? "80" : "443")) parts.port.clear();
  parts.path = parsed.get(CURLUPART_PATH).value_or("/");
  for (const CURLUPart part :
       {CURLUPART_USER, CURLUPART_PASSWORD, CURLUPART_QUERY, CURLUPART_FRAGMENT}) {
    if (parsed.get(part)) parts.has_more = true;
  }
  return parts;
}

std::string origin_of(const std::string& url) { return Url(url).origin(); }

std::optional<std::string> url_without_login(const std::string& url) {
  Url parsed(url);
  if (parsed.origin().empty()) return std::nullopt;
  for (const CURLUPart part : {CURLUPART_USER, CURLUPART_PASSWORD, CURLUPART_FRAGMENT}) {
    parsed.remove(part);
  }
  return parsed.get(CURLUPART_URL);
}

std::optional<std::string> redirected(const std::string& base, const std::string& location) {
  Url to(base, location);
  if (to.origin().empty()) return std::nullopt;
  const Url from(base);
  if (to.origin() == from.origin() && !to.get(CURLUPART_USER)) {
    to.take(CURLUPART_USER, from);
    to.take(CURLUPART_PASSWORD, from);
  }
  return to.get(CURLUPART_URL);
}

std::string sibling_url(const std::string& url, const std::string& name, const std::string& label) {
  Url sibling(url);
  if (sibling.origin().empty()) {
    throw Error(ErrorKind::InvalidArgument, label + " is not a valid URL");
  }
  if (is_signed(sibling.get(CURLUPART_QUERY).value_or(""))) {
    throw Error(ErrorKind::InvalidArgument,
                label +
                    " has a signature, which is valid for this one file and not for the files "
                    "beside it: use a URL without a signature, or s3://");
  }
  std::string path = sibling.get(CURLUPART_PATH).value_or("/");
  path.resize(path.rfind('/') + 1);
  sibling.set_escaped(CURLUPART_PATH, path + escaped(name));
  sibling.remove(CURLUPART_FRAGMENT);
  return sibling.get(CURLUPART_URL).value_or("");
}

std::string server_url(const std::string& scheme, const std::string& host,
                       const std::string& default_port, const std::string& label) {
  Url url(scheme + "://" + host);
  const std::optional<std::string> port = url.get(CURLUPART_PORT);
  if (url.status() == CURLUE_BAD_PORT_NUMBER || port == "0" || host.ends_with(':')) {
    throw Error(ErrorKind::InvalidArgument,
                label + " has a port that is not a number from 1 to 65535");
  }
  if (url.status() != CURLUE_OK) {
    throw Error(ErrorKind::InvalidArgument,
                label + " has a malformed host: " + curl_url_strerror(url.status()));
  }
  if (!port) url.set(CURLUPART_PORT, default_port);
  return url.get(CURLUPART_URL).value_or("");
}

}  // namespace tensorizer
