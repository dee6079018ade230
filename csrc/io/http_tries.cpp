#include "io/http_tries.h"

#include <algorithm>
#include <random>
#include <thread>

#include "base/error.h"

namespace tensorizer {

namespace {

using Clock = std::chrono::steady_clock;

// A try that brings less than this is counted as one that failed.
constexpr std::uint64_t kSomeProgress = 64 << 10;
constexpr std::chrono::milliseconds kFirstPause{50};
constexpr std::chrono::milliseconds kLongestPause{10000};
constexpr std::chrono::milliseconds kLongestWanted{60000};

bool is_temporary(int status) {
  return status == 408 || status == 429 || status == 500 || (status >= 502 && status <= 504);
}

ErrorKind kind_of(int status) {
  switch (status) {
    case 401:
    case 403:
    case 407:
      return ErrorKind::PermissionDenied;
    case 404:
    case 410:
      return ErrorKind::NotFound;
    case 408:
    case 504:
      return ErrorKind::TimedOut;
    default:
      return ErrorKind::Unavailable;
  }
}

}  // namespace

HttpTries::HttpTries(const HttpOptions& options, const std::string& label)
    : options_(options), label_(label), start_(Clock::now()) {}

void HttpTries::failed(const std::optional<HttpFailure>& failure, const HttpAnswer& answer,
                       std::uint64_t brought, Cancel& cancel) {
  if (brought >= kSomeProgress) count_ = 0;
  // A connection that is closed says "206" before it says nothing more.
  const bool temporary =
      failure ? failure->temporary : is_temporary(answer.status) || answer.status == 206;
  if (!temporary || count_ >= options_.retries || too_late()) give_up(failure, answer.status);
  pause(answer.retry_after, cancel);
  ++count_;
  ++all_;
}

bool HttpTries::too_late() const {
  const std::chrono::duration<double> spent = Clock::now() - start_;
  return options_.timeout > 0 && spent.count() >= options_.timeout;
}

void HttpTries::give_up(const std::optional<HttpFailure>& failure, int status) const {
  const std::string tries = all_ > 0 ? ", after " + std::to_string(all_) + " more tries" : "";
  if (!failure) {
    throw Error(kind_of(status), "the server of " + label_ + " answers with status " +
                                     std::to_string(status) + tries);
  }
  const ErrorKind kind = failure->is_argument ? ErrorKind::InvalidArgument
                         : failure->timed_out ? ErrorKind::TimedOut
                                              : ErrorKind::Unavailable;
  throw Error(kind, "cannot load " + label_ + tries + ": " + quote(failure->what));
}

void HttpTries::pause(std::optional<std::chrono::seconds> wanted, Cancel& cancel) const {
  static thread_local std::minstd_rand random{std::random_device{}()};
  std::chrono::milliseconds pause =
      std::min(kFirstPause * (1 << std::min(count_, 10)), kLongestPause);
  // Many that failed at once shall not come back at once.
  pause += std::chrono::milliseconds(random() % static_cast<unsigned>(pause.count()));
  if (wanted) pause = std::max(pause, std::min<std::chrono::milliseconds>(*wanted, kLongestWanted));
  const Clock::time_point end = Clock::now() + pause;
  while (Clock::now() < end) {
    cancel.check();
    if (too_late()) return;
    std::this_thread::sleep_for(std::min<Clock::duration>(kPollInterval, end - Clock::now()));
  }
}

}  // namespace tensorizer
