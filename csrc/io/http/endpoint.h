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

// What the endpoint knows about a request that failed.
struct HttpRefusal {
  std::string what;        // the server's own message, or empty
  std::string note;        // our own words about it, or empty
  bool recovered = false;  // the cause is known and gone: retry at once
  bool temporary = false;  // worth a retry, whatever the status
  std::optional<ErrorKind> kind;
};

// Thread-safe.
class HttpEndpoint {
 public:
  virtual ~HttpEndpoint() = default;

  // Completes a request for the file: sets its URL, and adds credentials or a signature. The method
  // and the headers that are particular to the request are set already. Called for every try.
  virtual void complete(HttpRequest& request, Cancel& cancel) = 0;

  // Called after every request that complete() has completed, whatever its outcome.
  virtual HttpRefusal learn(const HttpRequest& request, const HttpOutcome& outcome) = 0;

  // Returns the URI for messages: without secrets, quoted.
  virtual const std::string& label() const = 0;
};

// Returns the endpoint of an http:// or https:// URL.
std::unique_ptr<HttpEndpoint> url_endpoint(std::string_view url, const HttpOptions& options);

// Returns the caller's headers as whole lines, with references to secrets resolved. Throws
// InvalidArgument for a secret that cannot be the value of a header.
std::vector<std::string> header_lines(const HttpOptions& options);

}  // namespace tensorizer
