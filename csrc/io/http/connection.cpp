#include "io/http/connection.h"

#include <algorithm>

#include "base/error.h"
#include "base/world.h"
#include "io/http/easy.h"
#include "io/http/stats.h"
#include "io/url.h"

namespace tensorizer {

namespace {

// The bytes that are kept of the body of a refusal: enough to say why.
constexpr std::uint64_t kLongestRefusal = 16 << 10;
// The most bytes of heads in one request, including 1xx responses, redirects and trailers.
constexpr std::uint64_t kLongestHead = 256 << 10;
constexpr int kMostRedirects = 10;
// The most of a redirect's URL, all of whose parameters messages must not show. Signed ones have
// some 15 parameters, and few servers take more than 8 KiB.
constexpr std::size_t kLongestRedirect = 16 << 10;
constexpr std::ptrdiff_t kMostParameters = 100;

}  // namespace

void HttpRequest::ask_for_range(std::uint64_t begin, std::uint64_t end) {
  headers.push_back("Range: bytes=" + std::to_string(begin) + "-" + std::to_string(end - 1));
}

HttpConnection::HttpConnection(const HttpOptions& options, Bandwidth& bandwidth,
                               std::shared_ptr<CurlShare> share, std::shared_ptr<HttpStats> stats)
    : options_(options),
      bandwidth_(bandwidth),
      stats_(std::move(stats)),
      handles_(std::move(share)) {
  set_options(easy_, options_);
  set(easy_, CURLOPT_ERRORBUFFER, error_.data());
  set(easy_, CURLOPT_HEADERFUNCTION, &on_header);
  set(easy_, CURLOPT_HEADERDATA, this);
  set(easy_, CURLOPT_WRITEFUNCTION, &on_body);
  set(easy_, CURLOPT_WRITEDATA, this);
  set(easy_, CURLOPT_READFUNCTION, &on_send);
  set(easy_, CURLOPT_READDATA, this);
  set(easy_, CURLOPT_SEEKFUNCTION, &on_rewind);
  set(easy_, CURLOPT_SEEKDATA, this);
  set(easy_, CURLOPT_DEBUGFUNCTION, &on_debug);
  set(easy_, CURLOPT_DEBUGDATA, this);
}

HttpConnection::~HttpConnection() {
  if (handles_.are_ours()) give_up();
  curl_slist_free_all(headers_);
}

HttpOutcome HttpConnection::ask(const HttpRequest& request, HttpReceiver& receiver,
                                Cancel& cancel) {
  give_up();
  request_ = request;
  receiver_ = &receiver;
  redirects_ = 0;
  home_answer_.reset();
  sent_heads_.clear();
  head_size_ = 0;
  limits_ = TimeLimits(options_.stall_timeout + request.patience, options_.stall_timeout);
  start();
  return run(cancel);
}

void HttpConnection::count_in(std::shared_ptr<HttpStats> stats) {
  give_up();
  stats_ = std::move(stats);
}

HttpOutcome HttpConnection::go_on(std::optional<Clock::time_point> deadline, Cancel& cancel) {
  paused_ = false;
  request_.deadline = deadline;
  const CURLcode status = curl_easy_pause(easy_, CURLPAUSE_CONT);
  if (exception_) std::rethrow_exception(exception_);
  if (status != CURLE_OK && state_ != State::Dropped) {
    return {failure_of(status, error_.data()), answer_, {}};
  }
  return run(cancel);
}

void HttpConnection::give_up() noexcept {
  if (state_ != State::Idle) {
    stats_->count(easy_);
    handles_.stop();
  }
  state_ = State::Idle;
  paused_ = false;
}

// Runs the request until it ends or pauses.
HttpOutcome HttpConnection::run(Cancel& cancel) {
  struct Ended {
    HttpConnection& connection;
    ~Ended() {
      if (!connection.paused_) connection.give_up();
    }
  } ended{*this};
  for (;;) {
    auto failure = wait(cancel);
    add_logins();
    HttpOutcome outcome{std::move(failure), answer_,          request_.url,
                        home_answer_,       request_.secrets, request_.passing_secrets};
    if (paused_ || outcome.failure || !leads_on()) return outcome;
    give_up();
    outcome.failure = follow();
    if (outcome.failure) return outcome;
  }
}

// Returns true if the response is a redirect to follow.
bool HttpConnection::leads_on() const {
  const int status = answer_.status;
  // A 303 asks for a GET, whatever the request was, so it is followed only if that reads as well.
  const bool reads = request_.method == "GET" || request_.method == "HEAD";
  const bool moved =
      status == 301 || status == 302 || status == 307 || status == 308 || (status == 303 && reads);
  return moved && request_.follow_redirects && !answer_.header("location").empty();
}

// Returns true if the request goes to the server of its home.
bool HttpConnection::is_at_home() const {
  return origin_of(request_.url) == origin_of(request_.home);
}

// Adds the logins that libcurl has sent to the secrets of the request: that of ~/.netrc, or one
// that a server has chosen in a redirect. Other schemes, which are signatures, name headers that
// messages need.
void HttpConnection::add_logins() {
  const bool is_own = redirects_ == 0 && request_.url == request_.home;
  Secrets& secrets = is_own ? request_.secrets : request_.passing_secrets;
  std::string_view heads = sent_heads_;
  while (!heads.empty()) {
    const std::size_t end = std::min(heads.find('\n'), heads.size() - 1) + 1;
    const std::string_view line = heads.substr(0, end);
    if (lower_case(line).starts_with("authorization: basic ")) add_header_secrets(secrets, line);
    heads.remove_prefix(end);
  }
  sent_heads_.clear();
}

// Starts the request at the redirect's target, or returns why not.
std::optional<ConnectionFailure> HttpConnection::follow() {
  const auto refuse = [](const std::string& why) { return ConnectionFailure{.what = why}; };
  const auto url = redirected(request_.url, std::string(answer_.header("location")));
  if (!url) return refuse("it redirects to something that is not an http:// or https:// URL");
  if (url->size() > kLongestRedirect || std::ranges::count(*url, '&') >= kMostParameters) {
    return refuse("it redirects to a URL of more than " + std::to_string(kLongestRedirect) +
                  " bytes or " + std::to_string(kMostParameters) + " parameters");
  }
  const std::string to = origin_of(*url);
  if (origin_of(request_.url).starts_with("https:") && !to.starts_with("https:") &&
      !options_.insecure_redirects) {
    return refuse("it redirects from https:// to " + to +
                  ", which is not encrypted: the option 'insecure_redirects' allows that");
  }
  if (++redirects_ > kMostRedirects) {
    return refuse("more than " + std::to_string(kMostRedirects) + " redirects in a row");
  }
  limits_.refusal_ends();
  if (request_.body != nullptr && !request_.body->rewind()) {
    return refuse("it redirects after more bytes were sent than are kept to be sent again");
  }
  if (is_at_home()) home_answer_ = answer_;
  request_.url = *url;
  add_url_secrets(request_.passing_secrets, *url);
  start();
  return {};
}

// Starts the request at its URL.
void HttpConnection::start() {
  const auto add_header = [&](std::string line) {
    // libcurl leaves out a header without a value, unless it ends with a semicolon.
    if (line.ends_with(": ")) line.replace(line.size() - 2, 2, ";");
    curl_slist* longer = curl_slist_append(headers_, line.c_str());
    if (longer == nullptr) throw Error(ErrorKind::Internal, "libcurl is out of memory");
    headers_ = longer;
  };
  curl_slist_free_all(headers_);
  headers_ = nullptr;
  for (const std::string& line : request_.headers) add_header(line);
  const bool at_home = is_at_home();
  if (at_home) {
    for (const std::string& line : request_.home_headers) add_header(line);
  }
  set(easy_, CURLOPT_HTTPHEADER, headers_);
  set(easy_, CURLOPT_URL, request_.url.c_str());
  set(easy_, CURLOPT_PATH_AS_IS, request_.path_as_is ? 1L : 0L);
  const bool logs_in = at_home && request_.log_in;
  set(easy_, CURLOPT_NETRC, static_cast<long>(logs_in ? CURL_NETRC_OPTIONAL : CURL_NETRC_IGNORED));
  // Shows the login that libcurl adds.
  set(easy_, CURLOPT_VERBOSE, logs_in ? 1L : 0L);
  set(easy_, CURLOPT_NOPROXY, request_.direct ? "*" : nullptr);
  // HTTPGET resets UPLOAD, and UPLOAD resets HTTPGET.
  set(easy_, CURLOPT_HTTPGET, 1L);
  if (request_.body != nullptr) {
    set(easy_, CURLOPT_UPLOAD, 1L);
    set(easy_, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request_.body->size()));
  }
  set(easy_, CURLOPT_NOBODY, request_.method == "HEAD" ? 1L : 0L);
  set(easy_, CURLOPT_CUSTOMREQUEST, request_.method.c_str());
  answer_ = {};
  limits_.headers_end();
  passed_ = body_size_ = 0;
  exception_ = nullptr;
  error_[0] = '\0';
  handles_.start();
  state_ = State::Head;
}

// Blocks until the response is complete, was dropped, or the request pauses.
std::optional<ConnectionFailure> HttpConnection::wait(Cancel& cancel) {
  limits_.start(request_.deadline, passed_);
  while (state_ != State::Dropped) {
    const Clock::duration pause = bandwidth_.wait();
    const bool throttled = pause > Clock::duration::zero();
    const bool running = throttled || handles_.run();
    if (exception_) std::rethrow_exception(exception_);
    if (!running || state_ == State::Dropped) break;
    paused_ = paused_ || receiver_->has_enough();
    if (paused_) return {};
    cancel.check();
    if (throttled) limits_.excuse(passed_);
    if (state_ == State::Refusal && limits_.is_refusal_over()) {
      state_ = State::Dropped;
      break;
    }
    if (auto failure = limits_.exceeded(passed_)) return failure;
    if (throttled) {
      sleep_for(std::min<Clock::duration>(pause, kPollInterval));
    } else {
      handles_.wait();
    }
  }
  return end();
}

// Hands over the end of a response, or returns why it has none.
std::optional<ConnectionFailure> HttpConnection::end() {
  if (head_size_ > kLongestHead) {
    return ConnectionFailure{.what = "its headers have more than " + std::to_string(kLongestHead) +
                                     " bytes"};
  }
  const CURLcode code = handles_.result();
  if (code == CURLE_OUT_OF_MEMORY && state_ < State::Body) {  // libcurl's limit is 100 KiB
    return ConnectionFailure{.what = "a line of its headers is too long"};
  }
  if (code != CURLE_OK && state_ < State::Refusal) {
    ConnectionFailure failure = failure_of(code, error_.data());
    // A server that expects TLS takes plain HTTP for nonsense, and closes the connection.
    const bool is_closed =
        code == CURLE_GOT_NOTHING || code == CURLE_RECV_ERROR || code == CURLE_UNSUPPORTED_PROTOCOL;
    failure.tls_mismatch |=
        is_closed && head_size_ == 0 && !stats_->has_answers() && request_.url.starts_with("http:");
    return failure;
  }
  if (state_ == State::Head) {  // libcurl takes what came for the whole response
    return ConnectionFailure{.what = "the connection ended within the headers", .temporary = true};
  }
  if (state_ < State::Body) hand_over_head();
  if (!leads_on()) receiver_->ended(answer_);
  return {};
}

void HttpConnection::hand_over_head() {
  long status = 0;
  curl_easy_getinfo(easy_, CURLINFO_RESPONSE_CODE, &status);
  answer_.status = static_cast<int>(status);
  // Some S3 servers (rclone's) send a range with a Content-Range, but with status 200.
  if (status == 200 && answer_.end) answer_.status = 206;
  if (answer_.status == 200) {
    answer_.begin = 0;
    answer_.end = answer_.object.size = answer_.content_length;
  }
  limits_.headers_end();
  state_ = !leads_on() && receiver_->head(answer_) ? State::Body : State::Refusal;
  if (state_ == State::Refusal) limits_.refusal_begins();
}

std::size_t HttpConnection::on_header(const char* data, std::size_t size, std::size_t count,
                                      void* self) {
  auto& connection = *static_cast<HttpConnection*>(self);
  const std::string_view line(data, size * count);
  if (connection.state_ < State::Body) connection.limits_.headers_arrive();
  connection.passed_ += line.size();
  connection.head_size_ += line.size();
  if (connection.head_size_ > kLongestHead) return 0;
  try {
    connection.take_head_line(line);
    return size * count;
  } catch (...) {
    connection.exception_ = std::current_exception();
    return 0;
  }
}

void HttpConnection::take_head_line(std::string_view line) {
  if (state_ >= State::Body) return;  // a trailer, behind the body
  if (line.starts_with("HTTP/")) {    // also after the head of a 100
    answer_ = {};
    state_ = State::Head;
    return;
  }
  answer_.take_header(line);
  if (line != "\r\n" && line != "\n") return;
  state_ = State::HeadEnd;
  long status = 0;
  curl_easy_getinfo(easy_, CURLINFO_RESPONSE_CODE, &status);
  // After a 417, libcurl repeats the request without "Expect".
  if (status >= 200 && status != 417) hand_over_head();
}

// The callbacks keep exceptions in exception_, which must not be thrown through libcurl.
std::size_t HttpConnection::on_body(const char* data, std::size_t size, std::size_t count,
                                    void* self) {
  auto& connection = *static_cast<HttpConnection*>(self);
  try {
    if (connection.state_ < State::Body) connection.hand_over_head();
    const ConstBytes bytes(reinterpret_cast<const std::byte*>(data), size * count);
    const std::uint64_t most =
        connection.state_ == State::Body ? connection.receiver_->longest() : kLongestRefusal;
    const ConstBytes kept =
        bytes.first(std::min<std::uint64_t>(bytes.size(), most - connection.body_size_));
    if (connection.state_ == State::Refusal) {
      connection.answer_.refusal += as_text(kept);
    } else if (!connection.receiver_->body(kept)) {
      connection.paused_ = true;
      return CURL_WRITEFUNC_PAUSE;
    }
    connection.passed_ += bytes.size();
    connection.bandwidth_.count(bytes.size());
    connection.body_size_ += kept.size();
    if (kept.size() == bytes.size()) return bytes.size();
    connection.state_ = State::Dropped;
    return 0;
  } catch (...) {
    connection.exception_ = std::current_exception();
    return 0;
  }
}

std::size_t HttpConnection::on_send(char* data, std::size_t size, std::size_t count, void* self) {
  auto& connection = *static_cast<HttpConnection*>(self);
  if (connection.request_.body == nullptr) return 0;
  try {
    const auto given =
        connection.request_.body->give({reinterpret_cast<std::byte*>(data), size * count});
    connection.paused_ = !given;
    connection.limits_.headers_end();  // what came before was a 100
    connection.passed_ += given.value_or(0);
    connection.bandwidth_.count(given.value_or(0));
    return given ? *given : CURL_READFUNC_PAUSE;
  } catch (...) {
    connection.exception_ = std::current_exception();
    return CURL_READFUNC_ABORT;
  }
}

int HttpConnection::on_debug(CURL*, curl_infotype type, char* data, std::size_t size, void* self) {
  auto& connection = *static_cast<HttpConnection*>(self);
  try {
    if (type == CURLINFO_HEADER_OUT) connection.sent_heads_.append(data, size);
  } catch (...) {
    connection.exception_ = std::current_exception();
  }
  return 0;
}

int HttpConnection::on_rewind(void* self, curl_off_t offset, int origin) {
  HttpBody* const body = static_cast<HttpConnection*>(self)->request_.body;
  const bool done = body != nullptr && offset == 0 && origin == SEEK_SET && body->rewind();
  return done ? CURL_SEEKFUNC_OK : CURL_SEEKFUNC_CANTSEEK;
}

}  // namespace tensorizer
