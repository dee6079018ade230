// One small request, and its whole answer.
#pragma once

#include <string>

#include "base/cancel.h"
#include "io/http/connection.h"
#include "io/http/options.h"

namespace tensorizer {

struct HttpReply {
  int status = 0;
  std::string body;
};

struct HttpQuestion {
  HttpRequest request;  // complete but for its body
  std::string body;     // empty: none
  std::string label;    // for messages: what is asked
  // Whether an answer is worth another try, although its status does not say so; or null.
  bool (*is_temporary)(const HttpReply& reply) = nullptr;
};

// What the server says in the end: an answer of any status but those that are temporary, which are
// tried again. Redirects are not followed. Throws Error where no answer comes, or one of more than
// 64 KiB.
HttpReply http_fetch(const HttpQuestion& question, const HttpOptions& options, Cancel& cancel);

}  // namespace tensorizer
