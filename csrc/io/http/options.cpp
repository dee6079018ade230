#include "io/http/options.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/text.h"

namespace tensorizer {

namespace {

constexpr std::string_view kHeader = "header.";

// Returns true for a name that cannot end the header, or its name, early.
bool is_header_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return c > 0x20 && c < 0x7F && c != ':' && c != ';';
  });
}

// Headers by which requests say which bytes they carry or ask for.
constexpr std::string_view kOwnHeaders[] = {"content-length", "transfer-encoding", "range",
                                            "x-ms-range"};

bool take_header(const std::string& option, const std::string& value, HttpOptions& http) {
  std::string name = option.substr(kHeader.size());
  if (!is_header_name(name) || !is_header_value(value)) return false;
  if (std::ranges::find(kOwnHeaders, lower_case(name)) != std::end(kOwnHeaders)) {
    throw Error(ErrorKind::InvalidArgument,
                "option " + quote(option) + " cannot be set: each request has its own");
  }
  http.headers.emplace_back(std::move(name), value);
  return true;
}

}  // namespace

bool is_header_value(std::string_view value) {
  return std::none_of(value.begin(), value.end(),
                      [](unsigned char c) { return (c < 0x20 && c != '\t') || c == 0x7F; });
}

std::vector<Option> http_options(HttpOptions& http) {
  std::vector<Option> options{
      {std::string(kHeader), "a header: a name of letters, and a printable value in one line",
       [&http](const std::string& option, const std::string& value) {
         return take_header(option, value, http);
       },
       true},
      bool_option("http2", http.http2),
      bool_option("header_everywhere", http.header_everywhere),
      bool_option("insecure_redirects", http.insecure_redirects),
      seconds_option("connect_timeout", http.connect_timeout, 0.001),
      seconds_option("stall_timeout", http.stall_timeout, 0.001),
      seconds_option("timeout", http.timeout, 0),
      number_option("connections", "a number from 1 to 256", http.connections, 1, 256),
      bytes_option("chunk_size", "a number of bytes, 65536 or more, such as 8MiB", http.chunk_size,
                   64 << 10, std::uint64_t{1} << 40),
      number_option("retries", "a number from 0 to 1000", http.retries, 0, 1000),
      {"max_bandwidth", "a number of bytes per second, such as 100MB, or 0 for no limit",
       [&http](const std::string&, const std::string& text) {
         const std::string_view bytes = text;
         const auto given = parse_bytes(bytes.substr(0, bytes.size() - 2 * bytes.ends_with("/s")));
         http.max_bandwidth = given.value_or(0);
         return given.has_value();
       }},
  };
  const std::vector<Option> tls = tls_options(http.tls);
  options.insert(options.begin() + 1, tls.begin(), tls.end());
  return options;
}

bool is_for_its_server_only(std::string_view header) {
  const std::string name = lower_case(header);
  return name == "authorization" || name == "cookie";
}

OptionList for_other_servers(const OptionList& given) {
  const bool everywhere = options_from(given, &http_options).header_everywhere;
  OptionList left;
  std::ranges::copy_if(given, std::back_inserter(left), [&](const auto& option) {
    const std::string_view name = option.first;
    if (!name.starts_with(kHeader)) return true;
    return everywhere && !is_for_its_server_only(name.substr(kHeader.size()));
  });
  return left;
}

}  // namespace tensorizer
