// A file on a server: how requests for it are made, and what the server's refusals mean.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/cancel.h"
#include "base/error.h"
#include "io/http/connection.h"
#include "io/http/options.h"

namespace tensorizer {

// What an answer that was not wanted says.
struct HttpRefusal {
  std::string what;        // the server's own words, or empty
  bool recovered = false;  // the cause is known and gone: the next request may go at once
  bool temporary = false;  // worth another try, whatever its status
  std::optional<ErrorKind> kind;
};

// Any thread.
class HttpEndpoint {
 public:
  virtual ~HttpEndpoint() = default;

  // Completes a request for the file: where it goes to, and what shows who asks. Its method, and
  // the headers that are particular to it, are set. Called anew for every try.
  virtual void complete(HttpRequest& request, Cancel& cancel) = 0;

  // After every request that it completed, whatever came of it.
  virtual HttpRefusal learn(const HttpRequest& request, const HttpOutcome& outcome) = 0;

  // For messages: the URI without secrets, quoted.
  virtual const std::string& label() const = 0;
};

// The file of an http:// or https:// URL.
std::unique_ptr<HttpEndpoint> url_endpoint(std::string_view url, const HttpOptions& options);

// The headers that the caller gave, as whole lines, with the secrets that they name.
std::vector<std::string> header_lines(const HttpOptions& options);

}  // namespace tensorizer
