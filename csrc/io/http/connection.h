// A connection to a web server, which is kept open for several requests, one after another.
#pragma once

#include <array>
#include <cstdint>
#include <ctime>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "base/world.h"
#include "io/bandwidth.h"
#include "io/curl.h"
#include "io/curl_handles.h"
#include "io/http/answer.h"
#include "io/http/options.h"
#include "io/http/time_limits.h"
#include "io/secret.h"

namespace tensorizer {

class HttpStats;

// The body of a request.
class HttpBody {
 public:
  virtual ~HttpBody() = default;
  virtual std::uint64_t size() const = 0;
  // Fills `out` with the next bytes, and returns how many. Null if there are none yet: the request
  // pauses, and go_on() calls this again.
  virtual std::optional<std::size_t> give(Bytes out) = 0;
  // Starts again from the beginning. Returns false if that is impossible.
  virtual bool rewind() = 0;
};

struct HttpRequest {
  std::string method = "GET";
  std::string url;
  // Parameters, not escaped: the HttpEndpoint escapes them, and puts them into the URL.
  std::vector<std::pair<std::string, std::string>> query;
  // Whole lines: "name: value".
  std::vector<std::string> headers;
  // Headers that are sent only to the server of the URL `home`, wherever redirects lead.
  std::vector<std::string> home_headers;
  std::string home;
  // Must not be quoted from a response.
  Secrets secrets;
  // The same, but signatures of this request, and what a server has chosen in a redirect.
  Secrets passing_secrets{};
  HttpBody* body = nullptr;
  // The identifier of the credentials that it is signed with, for HttpEndpoint::learn(); or empty.
  std::string shown;
  // The time that its signature tells the server, also for HttpEndpoint::learn().
  std::optional<std::time_t> signed_at;
  // Follows up to ten redirects in a row, to URLs of up to 16 KiB and 100 parameters.
  bool follow_redirects = true;
  // Sends the login that ~/.netrc has for the server of `home`, and for no other, unless the URL
  // has one.
  bool log_in = true;
  // Ignores the proxies of the environment.
  bool direct = false;
  // Leaves "." and ".." in the path as they are.
  bool path_as_is = false;
  // Seconds that the server may take in addition to stall_timeout, because it has much to do.
  double patience = 0;
  // The time at which it fails unless it has ended or paused.
  std::optional<Clock::time_point> deadline;

  // Asks for the bytes of the object from `begin` on, before `end`.
  void ask_for_range(std::uint64_t begin, std::uint64_t end);
};

// The outcome of a request, so far if it has paused.
struct HttpOutcome {
  std::optional<ConnectionFailure> failure;
  HttpAnswer answer;
  std::string url;  // that sent the response, after all redirects
  // The last response from the server of HttpRequest::home, if that redirected.
  std::optional<HttpAnswer> home_answer = std::nullopt;
  // HttpRequest::secrets and the logins that libcurl has sent, and HttpRequest::passing_secrets
  // with the parameters of redirects.
  Secrets secrets{};
  Secrets passing_secrets{};
};

// Receives a response. An exception thrown here aborts the request.
class HttpReceiver {
 public:
  virtual ~HttpReceiver() = default;
  // Called before the body. Returns false if the body is of no use.
  virtual bool head(const HttpAnswer& answer) = 0;
  // Receives the next bytes of the body. Returns false to take none of them now: the request
  // pauses, and go_on() passes them again.
  virtual bool body(ConstBytes bytes) = 0;
  // Returns the most bytes of a body that are received. If there are more, the connection is
  // dropped, and the response counts as complete.
  virtual std::uint64_t longest() const { return std::numeric_limits<std::uint64_t>::max(); }
  // Returns true to pause the request.
  virtual bool has_enough() const { return false; }
  // Called after the whole response. May turn it into a refusal, whatever its status was.
  virtual void ended(HttpAnswer& answer) { (void)answer; }
};

// Not thread-safe: one thread at a time. A child of fork() may only destroy the connections of its
// parent, which does not affect them in the parent.
class HttpConnection {
 public:
  // Keeps references to the options and the bandwidth. Its requests count in `stats`.
  HttpConnection(const HttpOptions& options, Bandwidth& bandwidth, std::shared_ptr<CurlShare> share,
                 std::shared_ptr<HttpStats> stats);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  // Sends a request, and passes the response to the receiver. Returns at its end, or when the
  // receiver or the body of the request pauses it. Throws within kPollInterval of a cancel. A
  // request that is still paused when the next one starts is aborted.
  //
  // Limits for a request with all of its redirects: 256 KiB of heads, and `stall_timeout` for
  // bodies that the receiver does not want, of which 16 KiB each are kept.
  HttpOutcome ask(const HttpRequest& request, HttpReceiver& receiver, Cancel& cancel);
  // Returns true if the receiver or the body has paused the request.
  bool paused() const { return paused_; }
  // Continues a paused request, with a new deadline. Otherwise like ask().
  HttpOutcome go_on(std::optional<Clock::time_point> deadline, Cancel& cancel);

  // Aborts a paused request. The next ones count in `stats`.
  void count_in(std::shared_ptr<HttpStats> stats);

 private:
  // How far the request is, in this order. What follows a redirect begins again.
  enum class State {
    Idle,     // none is under way
    Head,     // the head of the response has not come, or not all of it
    HeadEnd,  // the empty line behind the headers has come
    Body,     // the receiver has the head, and wants the body
    Refusal,  // the receiver has the head, and the body is of no use
    Dropped,  // the body was longer than wanted, or took too long
  };

  void start();
  void give_up() noexcept;
  HttpOutcome run(Cancel& cancel);
  bool leads_on() const;
  bool is_at_home() const;
  std::optional<ConnectionFailure> follow();
  std::optional<ConnectionFailure> wait(Cancel& cancel);
  std::optional<ConnectionFailure> end();
  void hand_over_head();
  void take_head_line(std::string_view line);
  void add_logins();

  // Called by libcurl.
  static std::size_t on_header(const char* data, std::size_t size, std::size_t count, void* self);
  static std::size_t on_body(const char* data, std::size_t size, std::size_t count, void* self);
  static std::size_t on_send(char* data, std::size_t size, std::size_t count, void* self);
  static int on_debug(CURL* easy, curl_infotype type, char* data, std::size_t size, void* self);
  static int on_rewind(void* self, curl_off_t offset, int origin);

  const HttpOptions& options_;
  Bandwidth& bandwidth_;
  std::shared_ptr<HttpStats> stats_;
  std::array<char, CURL_ERROR_SIZE> error_{};
  curl_slist* headers_ = nullptr;
  CurlHandles handles_;
  CURL* const easy_ = handles_.easy();

  // The current request; redirects change its URL, and add to its secrets.
  HttpRequest request_;
  HttpReceiver* receiver_ = nullptr;
  State state_ = State::Idle;
  bool paused_ = false;  // in any state: a response may begin before all of the body is sent
  int redirects_ = 0;
  HttpAnswer answer_;
  std::optional<HttpAnswer> home_answer_;
  std::string sent_heads_;  // since add_logins()
  TimeLimits limits_{0, 0};
  std::uint64_t head_size_ = 0;  // of the responses of all redirects together
  std::uint64_t body_size_ = 0;
  std::uint64_t passed_ = 0;  // bytes sent and received
  std::exception_ptr exception_;
};

}  // namespace tensorizer
