// One conversation with a web server: requests, one after another, over a connection that is kept.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "base/cancel.h"
#include "io/http_answer.h"
#include "io/options.h"

namespace tensorizer {

struct HttpRequest {
  // Of the object; all of it when there is no end.
  std::uint64_t begin = 0;
  std::optional<std::uint64_t> end;
  std::string if_match;  // an ETag, or empty
};

// Why a request did not get all of its answer, and whether another try may.
struct HttpFailure {
  std::string what;
  bool temporary = false;
  bool timed_out = false;
  bool is_argument = false;  // the caller's own files or options are wrong
};

// Who takes an answer. What he throws ends the request.
class HttpReceiver {
 public:
  virtual ~HttpReceiver() = default;
  // Before its body. False when the body is of no use.
  virtual bool head(const HttpAnswer& answer) = 0;
  // False when he takes none of it now: it comes again when the request goes on.
  virtual bool body(ConstBytes bytes) = 0;
  // Whether he needs no more for now.
  virtual bool has_enough() const { return false; }
};

// What all connections to one server share: names that were looked up, TLS sessions.
class HttpShare;
std::shared_ptr<HttpShare> make_http_share();

// One thread at a time.
class HttpConnection {
 public:
  HttpConnection(std::string url, const HttpOptions& options, std::shared_ptr<HttpShare> share);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  // Asks, and hands the answer to the receiver, until it has all of it or does not take more now.
  // Ends within kPollInterval of a cancel, wherever it waits. What has not come to its end when the
  // next request starts is given up.
  std::optional<HttpFailure> get(const HttpRequest& request, HttpReceiver& receiver,
                                 Cancel& cancel);
  // Whether the receiver did not take more, and the same again.
  bool paused() const;
  std::optional<HttpFailure> go_on(Cancel& cancel);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tensorizer
