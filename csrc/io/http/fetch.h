// One small request, and its whole response.
#pragma once

#include <string>

#include "base/cancel.h"
#include "io/http/connection.h"
#include "io/http/options.h"
#include "io/secret.h"

namespace tensorizer {

struct HttpReply {
  int status = 0;
  std::string body;
  Secrets short_secrets{};  // that were sent, for redacted(): see HttpClient::redact()
};

struct HttpQuestion {
  HttpRequest request;  // complete but for its body
  std::string body;     // empty: none
  std::string label;    // names the server, for messages
  // Returns true for a response that is worth a retry although its status does not say so; or null.
  bool (*is_temporary)(const HttpReply& reply) = nullptr;
};

// Sends the request, and returns the response, of any status. Retries if the status or
// `is_temporary` says that the failure is temporary. Does not follow redirects. Throws Error if no
// response comes, if it stays a temporary failure, or if it has more than 64 KiB.
HttpReply http_fetch(const HttpQuestion& question, const HttpOptions& options, Cancel& cancel);

}  // namespace tensorizer
