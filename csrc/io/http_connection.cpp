#include "io/http_connection.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>

#include "base/error.h"
#include "io/http_share.h"

namespace tensorizer {

namespace {

// Slower than this, for as long as a stall may last, is a stall.
constexpr double kFloorPerSecond = 1024;
// What a connection receives, or sends, at once: it passes on while it is in the core's cache, and
// with several MiB, as libcurl would take, 16 connections load an eighth slower.
constexpr long kBuffer = 512 << 10;
// Of a refusal, enough to say why.
constexpr std::size_t kLongestRefusal = 16 << 10;

using Clock = std::chrono::steady_clock;

template <typename Value>
void set(CURL* handle, CURLoption option, Value value) {
  if (curl_easy_setopt(handle, option, value) != CURLE_OK) {
    throw Error(ErrorKind::Internal, "libcurl refuses option " + std::to_string(option));
  }
}

// libcurl quotes the whole URL of a proxy that it cannot use, with its password.
std::string without_quoted(std::string_view detail) {
  const std::size_t begin = detail.find('\'');
  if (begin == detail.npos || detail.find("roxy") > begin) return std::string(detail);
  return std::string(detail.substr(0, begin)) + "'...'";
}

// A handshake that was broken off, and not one that the two could not agree on: only of the latter
// the TLS library has an error of its own.
bool is_broken_off(std::string_view detail) {
  return detail.find("error:") == detail.npos || detail.find("unexpected eof") != detail.npos;
}

HttpFailure failure_of(CURLcode code, std::string_view detail) {
  HttpFailure failure;
  failure.what = detail.empty() ? curl_easy_strerror(code) : without_quoted(detail);
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
      failure.timed_out = failure.temporary = true;
      break;
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_ENGINE_NOTFOUND:
    case CURLE_URL_MALFORMAT:
    case CURLE_COULDNT_RESOLVE_PROXY:
      failure.is_argument = true;
      break;
    // What another try would meet again.
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_PINNEDPUBKEYNOTMATCH:
    case CURLE_SSL_CLIENTCERT:
    case CURLE_TOO_MANY_REDIRECTS:
    case CURLE_OUT_OF_MEMORY:
      break;
    case CURLE_SSL_CONNECT_ERROR:
      failure.temporary = is_broken_off(detail);
      break;
    default:
      failure.temporary = true;
  }
  return failure;
}

}  // namespace

void HttpRequest::ask_for_range(std::uint64_t begin, std::uint64_t end) {
  headers.push_back("Range: bytes=" + std::to_string(begin) + "-" + std::to_string(end - 1));
}

class HttpConnection::Impl {
 public:
  Impl(const HttpOptions& options, std::shared_ptr<HttpShare> share)
      : options_(options), share_(std::move(share)), easy_(curl_easy_init()) {
    multi_ = curl_multi_init();
    if (easy_ == nullptr || multi_ == nullptr) {
      throw Error(ErrorKind::Internal, "libcurl has no memory");
    }
    set_up();
  }
  ~Impl() {
    give_up();
    curl_multi_cleanup(multi_);
    curl_easy_cleanup(easy_);
    curl_slist_free_all(headers_);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  HttpOutcome ask(const HttpRequest& request, HttpReceiver& receiver, Cancel& cancel) {
    give_up();
    prepare(request);
    receiver_ = &receiver;
    const CURLMcode added = curl_multi_add_handle(multi_, easy_);
    if (added != CURLM_OK) throw Error(ErrorKind::Internal, curl_multi_strerror(added));
    under_way_ = true;
    return run(cancel);
  }

  bool paused() const { return paused_; }

  HttpOutcome go_on(Cancel& cancel) {
    paused_ = false;
    deadline_.reset();
    const CURLcode status = curl_easy_pause(easy_, CURLPAUSE_CONT);
    if (status != CURLE_OK) return {failure_of(status, error_.data()), answer_, {}};
    return run(cancel);
  }

 private:
  void give_up() noexcept {
    if (under_way_) {
      share_->count(easy_);
      curl_multi_remove_handle(multi_, easy_);
    }
    under_way_ = paused_ = false;
  }

  // Until the end of the request, unless it pauses.
  HttpOutcome run(Cancel& cancel) {
    struct Ended {
      Impl& impl;
      ~Ended() {
        if (!impl.paused_) impl.give_up();
      }
    } ended{*this};
    HttpOutcome outcome;
    outcome.failure = wait(cancel);
    outcome.answer = answer_;
    const char* url = nullptr;
    curl_easy_getinfo(easy_, CURLINFO_EFFECTIVE_URL, &url);
    if (url != nullptr) outcome.url = url;
    return outcome;
  }

  void set_up() {
    set(easy_, CURLOPT_SHARE, share_->handle());
    set(easy_, CURLOPT_NOSIGNAL, 1L);
    set(easy_, CURLOPT_QUICK_EXIT, 1L);
    set(easy_, CURLOPT_PROTOCOLS_STR, "http,https");
    set(easy_, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    set(easy_, CURLOPT_MAXREDIRS, 10L);
    // Sent at once: any other kind costs each request another round.
    set(easy_, CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BASIC));
    set(easy_, CURLOPT_TCP_KEEPALIVE, 1L);
    set(easy_, CURLOPT_BUFFERSIZE, kBuffer);
    set(easy_, CURLOPT_UPLOAD_BUFFERSIZE, kBuffer);
    set(easy_, CURLOPT_USERAGENT, "tensorizer_ops");
    set(easy_, CURLOPT_ERRORBUFFER, error_.data());
    set(easy_, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options_.connect_timeout * 1000));
    if (!options_.ca_file.empty()) set(easy_, CURLOPT_CAINFO, options_.ca_file.c_str());
    if (!options_.ca_path.empty()) set(easy_, CURLOPT_CAPATH, options_.ca_path.c_str());
    if (!options_.client_cert.empty()) set(easy_, CURLOPT_SSLCERT, options_.client_cert.c_str());
    if (!options_.client_key.empty()) set(easy_, CURLOPT_SSLKEY, options_.client_key.c_str());
    if (options_.insecure) {
      set(easy_, CURLOPT_SSL_VERIFYPEER, 0L);
      set(easy_, CURLOPT_SSL_VERIFYHOST, 0L);
    }
    if (!options_.http2) {
      set(easy_, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    }
    if (options_.max_bandwidth > 0) {
      const std::uint64_t share =
          std::max<std::uint64_t>(options_.max_bandwidth / options_.connections, 1);
      set(easy_, CURLOPT_MAX_RECV_SPEED_LARGE, static_cast<curl_off_t>(share));
      set(easy_, CURLOPT_MAX_SEND_SPEED_LARGE, static_cast<curl_off_t>(share));
    }
    set(easy_, CURLOPT_HEADERFUNCTION, &on_header);
    set(easy_, CURLOPT_HEADERDATA, this);
    set(easy_, CURLOPT_WRITEFUNCTION, &on_body);
    set(easy_, CURLOPT_WRITEDATA, this);
    set(easy_, CURLOPT_READFUNCTION, &on_send);
    set(easy_, CURLOPT_READDATA, this);
    set(easy_, CURLOPT_SEEKFUNCTION, &on_rewind);
    set(easy_, CURLOPT_SEEKDATA, this);
  }

  void add_header(const std::string& line) {
    curl_slist* longer = curl_slist_append(headers_, line.c_str());
    if (longer == nullptr) throw Error(ErrorKind::Internal, "libcurl has no memory");
    headers_ = longer;
  }

  void prepare(const HttpRequest& request) {
    curl_slist_free_all(headers_);
    headers_ = nullptr;
    for (const std::string& line : request.headers) {
      // Without a value, libcurl would leave such a header out.
      add_header(line.ends_with(": ") ? line.substr(0, line.size() - 2) + ";" : line);
    }
    set(easy_, CURLOPT_HTTPHEADER, headers_);
    set(easy_, CURLOPT_URL, request.url.c_str());
    set(easy_, CURLOPT_PATH_AS_IS, request.path_as_is ? 1L : 0L);
    set(easy_, CURLOPT_FOLLOWLOCATION, request.follow_redirects ? 1L : 0L);
    set(easy_, CURLOPT_NETRC,
        static_cast<long>(request.log_in ? CURL_NETRC_OPTIONAL : CURL_NETRC_IGNORED));
    set(easy_, CURLOPT_NOPROXY, request.direct ? "*" : nullptr);
    // Each of these two undoes the other.
    set(easy_, CURLOPT_HTTPGET, 1L);
    if (request.body != nullptr) {
      set(easy_, CURLOPT_UPLOAD, 1L);
      set(easy_, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body->size()));
    }
    set(easy_, CURLOPT_NOBODY, request.method == "HEAD" ? 1L : 0L);
    set(easy_, CURLOPT_CUSTOMREQUEST, request.method.c_str());
    body_ = request.body;
    patience_ = request.patience;
    deadline_ = request.deadline;
    answer_ = {};
    headed_ = wanted_ = false;
    passed_ = 0;
    exception_ = nullptr;
    error_[0] = '\0';
  }

  std::optional<HttpFailure> wait(Cancel& cancel) {
    Clock::time_point since = Clock::now();
    std::uint64_t before = passed_;
    const double patience = options_.stall_timeout + patience_;
    for (;;) {
      int running = 0;
      const CURLMcode status = curl_multi_perform(multi_, &running);
      if (status != CURLM_OK) throw Error(ErrorKind::Internal, curl_multi_strerror(status));
      if (exception_) std::rethrow_exception(exception_);
      if (running == 0) break;
      paused_ = paused_ || receiver_->has_enough();
      if (paused_) return {};
      cancel.check();
      if (deadline_ && Clock::now() >= *deadline_) {
        return HttpFailure{
            .what = "it takes longer than it may", .temporary = true, .timed_out = true};
      }
      const double waited = std::chrono::duration<double>(Clock::now() - since).count();
      const bool flows = static_cast<double>(passed_ - before) >= kFloorPerSecond * waited;
      if (flows && waited >= std::min(1.0, patience / 4)) {
        // Patience begins anew whenever it has been flowing for a while.
        since = Clock::now();
        before = passed_;
      } else if (!flows && waited >= patience) {
        return HttpFailure{.what = "nothing came, or next to nothing, for " +
                                   std::to_string(static_cast<int>(waited)) + " s",
                           .temporary = true,
                           .timed_out = true};
      }
      curl_multi_poll(multi_, nullptr, 0, static_cast<int>(kPollInterval.count()), nullptr);
    }
    int left = 0;
    const CURLMsg* message = curl_multi_info_read(multi_, &left);
    const CURLcode code = message != nullptr ? message->data.result : CURLE_FAILED_INIT;
    if (code != CURLE_OK) return failure_of(code, error_.data());
    // An answer without a body has not been handed over yet.
    if (!headed_) hand_over_head();
    receiver_->ended(answer_);
    return {};
  }

  void hand_over_head() {
    long status = 0;
    curl_easy_getinfo(easy_, CURLINFO_RESPONSE_CODE, &status);
    answer_.status = static_cast<int>(status);
    // Some servers of S3 (rclone's) send a range, say so, and yet say 200.
    if (status == 200 && answer_.end) answer_.status = 206;
    if (answer_.status == 200) {
      answer_.begin = 0;
      answer_.end = answer_.object.size = answer_.content_length;
    }
    headed_ = true;
    wanted_ = receiver_->head(answer_);
  }

  static std::size_t on_header(const char* data, std::size_t size, std::size_t count, void* self) {
    auto& impl = *static_cast<Impl*>(self);
    const std::string_view line(data, size * count);
    if (line.starts_with("HTTP/")) {  // of the answer after a redirect, or after a 100
      impl.answer_ = {};
    } else {
      impl.answer_.take_header(line);
    }
    impl.passed_ += line.size();
    return size * count;
  }

  // Nothing may be thrown through libcurl.
  static std::size_t on_body(const char* data, std::size_t size, std::size_t count, void* self) {
    auto& impl = *static_cast<Impl*>(self);
    try {
      if (!impl.headed_) impl.hand_over_head();
      const ConstBytes bytes(reinterpret_cast<const std::byte*>(data), size * count);
      if (!impl.wanted_) {
        impl.keep_refusal(as_text(bytes));
      } else if (!impl.receiver_->body(bytes)) {
        impl.paused_ = true;
        return CURL_WRITEFUNC_PAUSE;
      }
      impl.passed_ += size * count;
      return size * count;
    } catch (...) {
      impl.exception_ = std::current_exception();
      return 0;
    }
  }

  void keep_refusal(std::string_view text) {
    answer_.refusal += text.substr(0, kLongestRefusal - answer_.refusal.size());
  }

  static std::size_t on_send(char* data, std::size_t size, std::size_t count, void* self) {
    auto& impl = *static_cast<Impl*>(self);
    if (impl.body_ == nullptr) return 0;
    try {
      const auto given = impl.body_->give({reinterpret_cast<std::byte*>(data), size * count});
      impl.paused_ = !given;
      impl.passed_ += given.value_or(0);
      return given ? *given : CURL_READFUNC_PAUSE;
    } catch (...) {
      impl.exception_ = std::current_exception();
      return CURL_READFUNC_ABORT;
    }
  }

  static int on_rewind(void* self, curl_off_t offset, int origin) {
    const auto& impl = *static_cast<Impl*>(self);
    const bool done =
        impl.body_ != nullptr && offset == 0 && origin == SEEK_SET && impl.body_->rewind();
    return done ? CURL_SEEKFUNC_OK : CURL_SEEKFUNC_CANTSEEK;
  }

  const HttpOptions& options_;
  const std::shared_ptr<HttpShare> share_;
  CURL* easy_;
  CURLM* multi_ = nullptr;
  curl_slist* headers_ = nullptr;
  std::array<char, CURL_ERROR_SIZE> error_{};

  // Of the current request.
  bool under_way_ = false;
  bool paused_ = false;
  HttpReceiver* receiver_ = nullptr;
  HttpAnswer answer_;
  bool headed_ = false;
  bool wanted_ = false;
  std::uint64_t passed_ = 0;  // bytes, in both directions
  HttpBody* body_ = nullptr;
  double patience_ = 0;
  std::optional<Clock::time_point> deadline_;
  std::exception_ptr exception_;
};

HttpConnection::HttpConnection(const HttpOptions& options, std::shared_ptr<HttpShare> share)
    : impl_(std::make_unique<Impl>(options, std::move(share))) {}

HttpConnection::~HttpConnection() = default;

HttpOutcome HttpConnection::ask(const HttpRequest& request, HttpReceiver& receiver,
                                Cancel& cancel) {
  return impl_->ask(request, receiver, cancel);
}

bool HttpConnection::paused() const { return impl_->paused(); }

HttpOutcome HttpConnection::go_on(Cancel& cancel) { return impl_->go_on(cancel); }

}  // namespace tensorizer
