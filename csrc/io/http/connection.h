// One conversation with a web server: requests, one after another, over a connection that is kept.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "io/curl.h"
#include "io/http/answer.h"
#include "io/http/options.h"
#include "io/secret.h"

namespace tensorizer {

class HttpShare;

// What goes along with a request.
class HttpBody {
 public:
  virtual ~HttpBody() = default;
  virtual std::uint64_t size() const = 0;
  // The next bytes, as many as fit and there are. Nothing when it has none now: it is asked again
  // when the request goes on.
  virtual std::optional<std::size_t> give(Bytes out) = 0;
  // From its beginning again; false when that cannot be.
  virtual bool rewind() = 0;
};

struct HttpRequest {
  std::string method = "GET";
  std::string url;
  // Parameters, as they are: the place escapes them, and puts them into the URL.
  std::vector<std::pair<std::string, std::string>> query;
  // Whole lines: "name: value".
  std::vector<std::string> headers;
  // Those for the server of the URL `home` alone, wherever redirects lead.
  std::vector<std::string> home_headers;
  std::string home;
  // What must not be quoted from an answer.
  Secrets secrets;
  HttpBody* body = nullptr;
  // Whom it shows as the one who asks, where its place wants to know that again.
  std::string shown;
  // Whether another place that the server names is asked instead; up to ten of them, one after
  // another.
  bool follow_redirects = true;
  // Whether the URL's own password and ~/.netrc are shown.
  bool log_in = true;
  // Whether it goes around the proxies of the environment.
  bool direct = false;
  // Whether "." and ".." are names like others in its path.
  bool path_as_is = false;
  // Seconds that the server may take beyond a stall, because it has much to do.
  double patience = 0;
  // When it fails, if it has neither ended nor paused.
  std::optional<std::chrono::steady_clock::time_point> deadline;

  // Of the object, from `begin` on, before `end`.
  void ask_for_range(std::uint64_t begin, std::uint64_t end);
};

// What came of a request, or has come so far.
struct HttpOutcome {
  std::optional<ConnectionFailure> failure;
  HttpAnswer answer;
  std::string url;  // of the server that has answered, after all redirects
};

// Who takes an answer. What he throws ends the request.
class HttpReceiver {
 public:
  virtual ~HttpReceiver() = default;
  // Before its body. False when the body is of no use.
  virtual bool head(const HttpAnswer& answer) = 0;
  // False when he takes none of it now: it comes again when the request goes on.
  virtual bool body(ConstBytes bytes) = 0;
  // How many bytes of a body he takes. The connection is dropped at the next one, and the answer is
  // taken as it is by then.
  virtual std::uint64_t longest() const { return std::numeric_limits<std::uint64_t>::max(); }
  // Whether he needs no more for now.
  virtual bool has_enough() const { return false; }
  // After all of it. It may be a refusal, whatever its status says.
  virtual void ended(HttpAnswer& answer) { (void)answer; }
};

// One thread at a time.
class HttpConnection {
 public:
  // Keeps a reference to the options.
  HttpConnection(const HttpOptions& options, std::shared_ptr<HttpShare> share);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  // Asks, and hands the answer to the receiver, until it has all of it, or does not take more or
  // the body gives no more now. Ends within kPollInterval of a cancel, wherever it waits. What has
  // not come to its end when the next request starts is given up.
  //
  // Bounds what servers send, with all redirects of the request taken together: 256 KiB of heads,
  // and as long as a stall may last for bodies that the receiver does not want, 16 KiB of each.
  HttpOutcome ask(const HttpRequest& request, HttpReceiver& receiver, Cancel& cancel);
  // Whether the receiver or the body had it pause, and the same again, with a deadline of its own.
  bool paused() const;
  HttpOutcome go_on(std::optional<std::chrono::steady_clock::time_point> deadline, Cancel& cancel);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tensorizer
