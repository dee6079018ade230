#include "io/http/url.h"

#include <curl/curl.h>

#include <memory>

#include "base/text.h"

namespace tensorizer {

namespace {

class Url {
 public:
  // `location` may be relative to `base`.
  explicit Url(const std::string& base, const std::string& location = "") : handle_(curl_url()) {
    ok_ = set(CURLUPART_URL, base) && (location.empty() || set(CURLUPART_URL, location));
  }
  ~Url() { curl_url_cleanup(handle_); }
  Url(const Url&) = delete;
  Url& operator=(const Url&) = delete;

  bool ok() const noexcept { return ok_; }

  // Returns null if there is no such part.
  std::optional<std::string> get(CURLUPart part) const {
    char* text = nullptr;
    // For a whole URL, this flag would add the default port.
    const unsigned flags = part == CURLUPART_PORT ? CURLU_DEFAULT_PORT : 0;
    if (curl_url_get(handle_, part, &text, flags) != CURLUE_OK) return std::nullopt;
    const std::unique_ptr<char, decltype(&curl_free)> owner(text, &curl_free);
    return text;
  }

  bool set(CURLUPart part, const std::string& text) {
    constexpr unsigned kFlags = CURLU_URLENCODE | CURLU_ALLOW_SPACE;
    return curl_url_set(handle_, part, text.c_str(), kFlags) == CURLUE_OK;
  }

  // Copies the part from the other URL, still escaped.
  void take(CURLUPart part, const Url& other) {
    const std::optional<std::string> text = other.get(part);
    if (text) curl_url_set(handle_, part, text->c_str(), 0);
  }

  std::string origin() const {
    const std::string scheme = ok_ ? get(CURLUPART_SCHEME).value_or("") : "";
    if (scheme != "http" && scheme != "https") return {};
    return scheme + "://" + lower_case(get(CURLUPART_HOST).value_or("")) + ":" +
           get(CURLUPART_PORT).value_or("");
  }

 private:
  CURLU* const handle_;
  bool ok_ = false;
};

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

}  // namespace tensorizer
