#include "io/http/endpoint.h"

#include <mutex>
#include <utility>

#include "base/text.h"
#include "io/secret.h"
#include "io/uri.h"

namespace tensorizer {

namespace {

// Returns a URL in which bytes that are not allowed there have become %XX.
std::string escaped(std::string_view url) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string text;
  for (const char c : url) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte > 0x20 && byte < 0x7F && c != '"' && c != '<' && c != '>') {
      text += c;
    } else {
      text += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return text;
}

}  // namespace

UrlEndpoint::UrlEndpoint(std::string url, const HttpOptions& options, std::string label)
    : url_(std::move(url)),
      headers_(header_lines(options)),
      headers_everywhere_(options.header_everywhere),
      label_(std::move(label)) {
  for (const std::string& line : headers_) add_header_secrets(secrets_, line);
  add_url_secrets(secrets_, url_);
}

void UrlEndpoint::complete(HttpRequest& request, Cancel&) {
  const std::lock_guard lock(mutex_);
  request.home = url();
  request.url = moved_to_.empty() ? request.home : moved_to_;
  for (const std::string& line : headers_) {
    const bool everywhere =
        headers_everywhere_ && !is_for_its_server_only(line.substr(0, line.find(':')));
    (everywhere ? request.headers : request.home_headers).push_back(line);
  }
  request.secrets = secrets_;
  add_url_secrets(request.passing_secrets, moved_to_);
}

HttpRefusal UrlEndpoint::learn(const HttpRequest& request, const HttpOutcome& outcome) {
  const int status = outcome.answer.status;
  const std::lock_guard lock(mutex_);
  if (!outcome.failure && (status == 200 || status == 206)) {
    if (outcome.url != request.url) moved_to_ = outcome.url;
    return {};
  }
  HttpRefusal refusal;
  if (!outcome.failure && status == 409 && request.method == "PUT") {
    refusal.note = "WebDAV servers say so if there is no such folder: create it first";
  }
  // 412 and 416 are about the file itself, and not about its URL.
  if (request.url == request.home || status == 412 || status == 416) return refusal;
  if (moved_to_ == request.url) moved_to_.clear();
  refusal.recovered = !outcome.failure && status < 500;
  refusal.temporary = !refusal.recovered;
  return refusal;
}

std::vector<std::string> header_lines(const HttpOptions& options) {
  std::vector<std::string> lines;
  for (const auto& [name, given] : options.headers) {
    const std::string value = resolve_secret(given);
    if (!is_header_value(value)) {
      throw Error(ErrorKind::InvalidArgument,
                  "the secret for header " + quote(name) + " must be one line of printable text");
    }
    lines.push_back(name + ": " + value);
  }
  return lines;
}

std::unique_ptr<HttpEndpoint> url_endpoint(std::string_view url, const HttpOptions& options) {
  const Uri uri = split_uri(url);
  return std::make_unique<UrlEndpoint>(escaped(uri.scheme + "://" + uri.rest), options,
                                       quote(without_secrets(url), 4096));
}

}  // namespace tensorizer
