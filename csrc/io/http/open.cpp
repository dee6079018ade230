#include "io/http/open.h"

#include "base/error.h"
#include "io/http/operation.h"
#include "io/http/swap.h"
#include "io/secret.h"
#include "io/url.h"

namespace tensorizer {

namespace {

std::string http_sibling(const std::string& uri, const std::string& name, const OptionList&) {
  return sibling_url(uri, name, quote(without_secrets(uri), 4096));
}

std::string http_identity(const std::string& uri) { return url_without_login(uri).value_or(uri); }

template <typename Options>
HttpAccess access_to(const std::string& uri, const Options& options) {
  const HttpOptions http = options_from(options.given, &http_options);
  return {url_endpoint(uri, http), http_pool(options.access.get(), http)};
}

std::unique_ptr<Source> open_http_source(const std::string& uri, const SourceOptions& options,
                                         Cancel& cancel) {
  return http_source(access_to(uri, options), options, cancel);
}

std::unique_ptr<Sink> open_http_sink(const std::string& uri, const SinkOptions& options, Cancel&) {
  return http_sink(access_to(uri, options));
}

void remove_http_file(const std::string& uri, const SinkOptions& options, Cancel& cancel) {
  HttpClient client(access_to(uri, options));
  // Without it, a WebDAV server removes a folder, with all files in it.
  remove_file(client, cancel, {"Depth: 0"});
}

bool swap_web_file(const std::string& uri, std::optional<ConstBytes> known, ConstBytes next,
                   const SinkOptions& options, Cancel& cancel) {
  HttpPut put;
  put.fault = [](const HttpAnswer& answer, std::string_view text) {
    return answer.status == 200 && is_page(text) ? not_from("WebDAV", answer, text, {})
                                                 : std::string();
  };
  return swap_http_file(access_to(uri, options), std::move(put), known, next, cancel);
}

constexpr UriScheme kSchemes[] = {{"http", "http://"}, {"https", "https://"}};

}  // namespace

const PlaceKind web_servers{
    .folder = "http",
    .schemes = kSchemes,
    .options = &checks<&http_options>,
    .open_source = &open_http_source,
    .open_sink = &open_http_sink,
    .sibling = &http_sibling,
    .identity = &http_identity,
    .remove = &remove_http_file,
    .swap = &swap_web_file,
};

}  // namespace tensorizer
