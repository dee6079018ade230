// A file on a server: how requests for it are made, and what the server's refusals mean.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "base/error.h"
#include "codec/whole_hash.h"
#include "io/http/connection.h"
#include "io/http/options.h"
#include "io/secret.h"

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

  // Returns the digest that the server keeps of the whole file; null if there is none, and before
  // the first response.
  virtual std::optional<WholeDigest> digest() { return std::nullopt; }
};

// The endpoint of a URL. After a redirect, later requests go straight to its target, which saves a
// round trip each. They return to the original URL if the target stops responding as expected: such
// targets are often valid for a limited time only.
class UrlEndpoint : public HttpEndpoint {
 public:
  UrlEndpoint(std::string url, const HttpOptions& options, std::string label);

  void complete(HttpRequest& request, Cancel& cancel) override;
  HttpRefusal learn(const HttpRequest& request, const HttpOutcome& outcome) override;
  const std::string& label() const override { return label_; }

 private:
  // Returns the URL of the file itself.
  virtual std::string url() const { return url_; }

  const std::string url_;
  const std::vector<std::string> headers_;
  const bool headers_everywhere_;
  const std::string label_;
  Secrets secrets_;
  std::mutex mutex_;
  std::string moved_to_;  // guarded by the mutex
};

// Returns the endpoint of an http:// or https:// URL.
std::unique_ptr<HttpEndpoint> url_endpoint(std::string_view url, const HttpOptions& options);

// Returns the caller's headers as whole lines, with references to secrets resolved. Throws
// InvalidArgument for a secret that cannot be the value of a header.
std::vector<std::string> header_lines(const HttpOptions& options);

}  // namespace tensorizer
