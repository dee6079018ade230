#include "io/http/retry.h"

#include <algorithm>

#include "base/error.h"
#include "base/redaction.h"
#include "io/seconds.h"

namespace tensorizer {

namespace {

// After so many recoveries, a failure is no longer believed to be recovered: its cause comes back.
constexpr int kMostRecoveries = 3;
constexpr std::chrono::milliseconds kLongestWanted{60000};
constexpr const char* kOtherScheme =
    ": https:// is for servers that speak TLS, and http:// for others";

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
    case 507:
      return ErrorKind::OutOfSpace;
    default:
      return ErrorKind::Unavailable;
  }
}

// Returns true for the error page of a server that was asked without TLS on a port for TLS.
bool wants_tls(const HttpAnswer& answer) {
  if (answer.status != 400) return false;
  for (const char* const words : {"HTTPS port", "HTTPS server", "SSL-enabled server"}) {
    if (answer.refusal.find(words) != answer.refusal.npos) return true;
  }
  return false;
}

}  // namespace

bool is_temporary(int status) {
  return status == 408 || status == 429 || status == 500 || (status >= 502 && status <= 504);
}

HttpTries::HttpTries(HttpClient& client, const char* doing, int retries, double timeout)
    : client_(client), doing_(doing), tries_(retries) {
  if (timeout > 0) deadline_ = Clock::now() + seconds(timeout);
}

HttpOutcome HttpTries::ask(HttpConnection& connection, HttpRequest request, HttpReceiver& receiver,
                           Cancel& cancel) {
  client_.endpoint().complete(request, cancel);
  if (deadline_) request.deadline = *deadline_ + seconds(request.patience);
  add_proxy_secrets(request.secrets);
  client_.redact(request.secrets, request.passing_secrets);
  HttpOutcome outcome = connection.ask(request, receiver, cancel);
  client_.redact(outcome.secrets, outcome.passing_secrets);
  refusal_ = client_.endpoint().learn(request, outcome);
  return outcome;
}

HttpOutcome HttpTries::go_on(HttpConnection& connection, Cancel& cancel) {
  HttpOutcome outcome = connection.go_on(deadline_, cancel);
  client_.redact(outcome.secrets, outcome.passing_secrets);
  return outcome;
}

void HttpTries::failed(const HttpOutcome& outcome, std::uint64_t brought, Cancel& cancel) {
  tries_.count_progress(brought);
  const int status = outcome.answer.status;
  // Status 206 without a failure: the server closed the connection before the end of the range.
  const bool temporary =
      refusal_.temporary ||
      (outcome.failure ? outcome.failure->temporary : is_temporary(status) || status == 206);
  const bool recovered = refusal_.recovered && recovered_ < kMostRecoveries;
  if (!recovered && (!temporary || tries_.are_used_up())) give_up(outcome);
  if (deadline_ && Clock::now() >= *deadline_) give_up(outcome);
  if (recovered) {
    ++recovered_;
    tries_.go_on_at_once();
  } else {
    const std::chrono::milliseconds wanted =
        outcome.answer.retry_after.value_or(std::chrono::seconds{0});
    if (!tries_.wait(cancel, std::min(wanted, kLongestWanted), deadline_)) give_up(outcome);
  }
  client_.count_retry();
}

void HttpTries::give_up(const HttpOutcome& outcome) const {
  const RedactedQuotes quotes(client_);
  const std::string tries = tries_.described();
  if (!outcome.failure) {
    const int status = outcome.answer.status;
    if (status == 206) {
      throw Error(ErrorKind::Unavailable,
                  "the server of " + client_.label() + " sends less than was requested" + tries);
    }
    std::string why = refusal_.what.empty() ? "" : ": " + quote(refusal_.what);
    if (!refusal_.note.empty()) why += ": " + refusal_.note;
    if (wants_tls(outcome.answer)) why += kOtherScheme;
    throw Error(refusal_.kind.value_or(kind_of(status)), "the server of " + client_.label() +
                                                             " answers with status " +
                                                             std::to_string(status) + tries + why);
  }
  const ErrorKind kind = outcome.failure->is_argument ? ErrorKind::InvalidArgument
                         : outcome.failure->timed_out ? ErrorKind::TimedOut
                                                      : ErrorKind::Unavailable;
  throw Error(kind, std::string("cannot ") + doing_ + " " + client_.label() + tries + ": " +
                        quote(outcome.failure->what, 400) +
                        (outcome.failure->tls_mismatch ? kOtherScheme : ""));
}

}  // namespace tensorizer
